"""Formats and single files: what a reader has to refuse, and what a load has to check."""

from __future__ import annotations

from typing import Final

from tests.mutants.mutant import Mutant

MALFORMED: Final = "tests/formats/test_malformed.py::test_it_is_refused_by_its_own_class"

FORMATS: Final = (
    Mutant(
        name="digest-not-checked",
        breaks="A flipped bit in a tensor is loaded without an error.",
        guarantee="G9",
        old="        return digest(data) == digests[number * DIGEST : (number + 1) * DIGEST]\n",
        new="        return True\n",
        tests=(
            "tests/files/test_reader.py::test_a_damaged_tensor_is_named_and_the_others_still_load",
        ),
    ),
    Mutant(
        name="crc-not-checked",
        breaks="A flipped bit in a file of NumPy or torch is loaded without an error.",
        guarantee="G9",
        old="            return crc32(buffers[row].data, before) != expected\n",
        new="            return False\n",
        tests=(
            "tests/formats/npz/test_library.py"
            "::test_a_damaged_stored_array_of_numpy_is_found_by_its_checksum",
        ),
    ),
    Mutant(
        name="safetensors-header-length-without-a-bound",
        breaks="A small file with a large header length makes the reader take gigabytes.",
        old=(
            "    if length > MAX_HEADER:\n"
            '        raise LimitExceeded(f"header length (offset 0): {length:,}, over '
            '{MAX_HEADER:,}")\n'
        ),
        new="",
        tests=(MALFORMED,),
    ),
    Mutant(
        name="safetensors-overlapping-ranges",
        breaks="A file whose tensors overlap, or leave holes for hidden bytes, is read.",
        old="    wrong = np.flatnonzero(begins[order] != expected[:-1])\n",
        new="    wrong = np.flatnonzero(begins[order] < 0)\n",
        tests=(MALFORMED,),
    ),
    Mutant(
        name="safetensors-trailing-bytes",
        breaks="A file with bytes after the last tensor is read.",
        old="    if end < available:\n        raise TrailingBytes(",
        new="    if False:\n        raise TrailingBytes(",
        tests=(MALFORMED,),
    ),
    Mutant(
        name="safetensors-duplicate-keys",
        breaks="Of two tensors of one name in a header, the last is loaded without an error.",
        old='    if not once or rare or "__metadata__" in entries:\n',
        new='    if rare or "__metadata__" in entries:\n',
        tests=(MALFORMED,),
    ),
    Mutant(
        name="tenzor-offsets-not-checked",
        breaks="A .tenzor file whose tensors overlap is read.",
        old='    placed = entries["offset"] == before\n',
        new='    placed = entries["offset"] >= 0\n',
        tests=(MALFORMED,),
    ),
    Mutant(
        name="tenzor-not-ordered-by-width",
        breaks="The original program cannot map a .tenzor file, because a tensor is misaligned.",
        guarantee="G19",
        reverts="tensors of .tenzor files were misaligned for the original",
        old=(
            "    given = tensors\n"
            "    order = sorted(range(len(tensors)), key=lambda i: "
            "-tensors[i][1].kind.numpy.itemsize)\n"
        ),
        new="    given = tensors\n    order = list(range(len(tensors)))\n",
        tests=("tests/formats/tenzor/test_file.py::test_tensors_come_back_as_they_were_saved",),
    ),
    Mutant(
        name="oxck-name-length-without-a-bound",
        breaks="A name length in an OXCK file makes the reader take gigabytes.",
        old='    if name_length > MAX_NAME:\n        raise LimitExceeded(f"field name_len',
        new='    if False:\n        raise LimitExceeded(f"field name_len',
        tests=(MALFORMED,),
    ),
    Mutant(
        name="oxck-duplicate-names",
        breaks="Of two tensors of one name in an OXCK file, the last is loaded without an error.",
        old="        if entry.name in entries:\n",
        new="        if False:\n",
        tests=(MALFORMED,),
    ),
    Mutant(
        name="npy-big-endian-ignored",
        breaks="An array that a big-endian machine wrote is loaded with its bytes swapped.",
        guarantee="G4",
        old='        return dtype, parts[1] == ">" and DTYPES[dtype].bits > 8\n',
        new="        return dtype, False\n",
        tests=("tests/formats/npz/test_npy_header.py::test_we_read_what_numpy_writes",),
    ),
    Mutant(
        name="zip-two-end-records",
        breaks="A zip file is read in one way here, and in another way by other programs.",
        old="    if len(reaching) > 1 or (reaching and reaching[0] != last):\n",
        new="    if False:\n",
        tests=(MALFORMED,),
    ),
    Mutant(
        name="zip-bomb",
        breaks="A few bytes in a zip file claim to inflate to petabytes, which are allocated.",
        old="    lying = -(-size // MAX_INFLATION) > stored_size\n",
        new="    lying = size < 0\n",
        tests=(MALFORMED,),
    ),
    Mutant(
        name="sunc-byte-order-ignored",
        breaks="A .sunc file of a big-endian machine is read with its bytes swapped.",
        guarantee="G4",
        old=(
            "        if endian == BIG:\n"
            '            raise UnsupportedFile("field endian (offset 8): the file is '
            'big-endian")\n'
            "        if endian != LITTLE:\n"
        ),
        new="        if endian not in (BIG, LITTLE):\n",
        tests=(MALFORMED,),
    ),
    Mutant(
        name="torch-tensor-beyond-its-storage",
        breaks="A torch file makes a tensor of memory that is not its own.",
        guarantee="G11",
        old="    elif (last + 1) * width > storage.nbytes:\n",
        new="    elif False:\n",
        tests=(MALFORMED,),
    ),
    Mutant(
        name="torch-negative-offset",
        breaks="A torch file makes a tensor that begins before its storage.",
        guarantee="G11",
        old="    if type(offset) is not int or not 0 <= offset <= MAX_LENGTH:\n",
        new="    if type(offset) is not int or not offset <= MAX_LENGTH:\n",
        tests=(MALFORMED,),
    ),
    Mutant(
        name="record-seal-not-checked",
        breaks="A flipped bit in a run file or in marks is taken for what was written.",
        guarantee="G9",
        old="        check_seal(digits, text, len(start))\n",
        new="        pass\n",
        tests=("tests/store/schema/test_seal.py::test_every_flipped_bit_is_found",),
    ),
)
