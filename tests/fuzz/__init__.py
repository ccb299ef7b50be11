"""A fuzzer of the readers: `python -m tests.fuzz --seconds 60`.

seeds       legal and malformed files to start from
mutations   changes to bytes, to the header's text, and to its JSON
properties  what must hold for any input
limits      bounds of time and memory for one input
run         the loop, its counts, and what it keeps of a failure
"""
