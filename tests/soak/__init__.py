"""A soak: processes that use one store while they are killed, stopped and run out of space.

    python -m tests.soak --minutes 10

states      the states that are saved: every bit follows from one number
journal     what each process says before and after each operation, outside of the store
worker      a process that does random operations
model       what the journals allow a reader to see, and a store to hold
reader      the files of a store, read by docs/format.md without the library
campaign    file systems, processes, kills, full disks, links, and the checks after each phase
"""
