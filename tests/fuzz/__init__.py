"""A fuzzer of the readers, a target for each format and for records: `make fuzz SECONDS=60`.

campaign    inputs guided by the coverage of the readers, by Atheris
run         the corpus and some changes of it, without Atheris: what the tests do
targets     each format's seeds, its parts, and a second reader to compare with
records     the same for records, with the data files that they refer to
mutations   changes of files, by their parts
properties  what must hold for any input, read in memory or opened as a stream
on_disk     what must hold for the same input as a file
limits      bounds of time and memory for one input
"""
