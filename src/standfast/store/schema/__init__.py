"""The files of a store down to the byte: records, run files, marks, names."""
