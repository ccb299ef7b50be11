"""A fuzzer of the readers, a target for each format: `python -m tests.fuzz --seconds 60`.

targets     each format's seeds, its own mutations, and a second reader to compare with
mutations   changes to bytes, binary fields, JSON, zip archives and pickles
expected    what the tensors of a file should be
properties  what must hold for any input, read in memory or opened as a stream
on_disk     what must hold for the same input as a real file
limits      bounds of time and memory for one input
run         the loop, its counts, and what it keeps of a failure
"""
