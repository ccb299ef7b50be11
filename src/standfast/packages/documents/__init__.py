"""The small files of a package: manifest, configuration of the tokenizer, data set, provenance."""
