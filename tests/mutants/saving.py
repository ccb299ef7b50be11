"""Files, saves, commits, deduplication and ranks."""

from __future__ import annotations

from typing import Final

from tests.mutants.mutant import Mutant

SAVING: Final = (
    Mutant(
        name="file-not-synced-before-rename",
        breaks="A file that was saved is empty after a power cut.",
        guarantee="G2",
        old="            disk.sync(fd)\n            disk.rename(aside, target)\n",
        new="            disk.rename(aside, target)\n",
        tests=(
            "tests/files/test_power_loss.py"
            "::test_a_power_cut_at_any_moment_leaves_the_old_file_or_the_new_one",
        ),
    ),
    Mutant(
        name="folder-not-synced-after-rename",
        breaks="A file that was saved has no name after a power cut.",
        guarantee="G2",
        old="        disk.close(fd)\n    disk.sync_folder(target.parent)\n",
        new="        disk.close(fd)\n",
        tests=(
            "tests/files/test_power_loss.py"
            "::test_a_power_cut_at_any_moment_leaves_the_old_file_or_the_new_one",
        ),
    ),
    Mutant(
        name="failed-save-leaves-its-file",
        breaks="A save that fails leaves a temporary file in the folder.",
        guarantee="G16",
        old="                disk.remove(aside)\n            raise\n    finally:",
        new="                pass\n            raise\n    finally:",
        tests=(
            "tests/files/test_faults.py"
            "::test_a_save_that_fails_leaves_the_old_file_or_the_new_one_and_nothing_else",
        ),
    ),
    Mutant(
        name="reserve-with-libc-emulation",
        breaks="Where a file system has no fallocate, libc writes zeros into blocks of data.",
        guarantee="G4",
        reverts="data files above 256 MiB were damaged on FUSE, old NFS and ext2",
        old="                libc.allocate(fd, size)\n",
        new="                os.posix_fallocate(fd, 0, size)\n",
        tests=(
            "tests/files/test_reserve.py"
            "::test_a_file_is_written_where_reserving_is_not_supported[95-file]",
        ),
    ),
    Mutant(
        name="check-then-rename",
        breaks="Without hard links, two processes can commit the same step.",
        guarantee="G3",
        reverts="exclusive creation was a check and then a rename that replaces",
        old="        libc.rename_new(source, target)\n",
        new=(
            "        if target.exists():\n"
            "            raise FileExistsError(errno.EEXIST, 'exists', str(target))\n"
            "        os.rename(source, target)\n"
        ),
        tests=(
            "tests/store/backends/test_local.py"
            "::test_of_two_processes_that_create_one_name_one_wins",
        ),
    ),
    Mutant(
        name="log-extended-through-a-link",
        breaks="A metrics log that is a link makes a run write into a file outside of the store.",
        guarantee="G14",
        reverts="files in a store were written through links",
        old="        refuse_links(target.parent, target)\n        make_folders",
        new="        make_folders",
        tests=(
            "tests/store/backends/test_links.py"
            "::test_nothing_is_changed_through_a_link_out_of_the_store[logs]",
        ),
    ),
    Mutant(
        name="store-written-through-a-link",
        breaks="A folder of a store that is a link lets a save change what lies outside.",
        guarantee="G14",
        reverts="a store was changed through links in it",
        old="        disk.refuse_links(*self._above(path))\n",
        new="        pass\n",
        tests=(
            "tests/store/backends/test_links.py"
            "::test_nothing_is_changed_through_a_link_out_of_the_store[checkpoints/HP]",
        ),
    ),
    Mutant(
        name="data-file-not-synced",
        breaks="A power cut after a save leaves a checkpoint without its data.",
        guarantee="G2",
        old=(
            "            disk.LOCAL.truncate(self._fd, size)\n"
            "            disk.LOCAL.sync(self._fd)\n"
        ),
        new="            disk.LOCAL.truncate(self._fd, size)\n",
        tests=(
            "tests/store/faults/test_power_loss.py"
            "::test_a_power_cut_at_any_moment_leaves_the_old_state_or_the_new_one",
        ),
    ),
    Mutant(
        name="create-replaces",
        breaks="Of two processes that save the same step, the second replaces the first.",
        guarantee="G3",
        old="            disk.LOCAL.link(self.path, path)\n",
        new="            disk.LOCAL.rename(self.path, path)\n",
        tests=(
            "tests/store/backends/test_local.py"
            "::test_of_two_processes_that_create_one_name_one_wins",
        ),
    ),
    Mutant(
        name="record-before-its-data-is-durable",
        breaks="A power cut after a save leaves a record whose data files have no names.",
        guarantee="G2",
        old=(
            '            placed.append(f"{folder}/{file.name}")\n'
            "        if placed:\n"
            "            self._backend.sync(folder)\n"
        ),
        new='            placed.append(f"{folder}/{file.name}")\n',
        tests=(
            "tests/store/faults/test_power_loss.py"
            "::test_a_power_cut_at_any_moment_leaves_the_old_state_or_the_new_one",
        ),
    ),
    Mutant(
        name="files-not-checked-before-commit",
        breaks="A save commits a record whose data another process has deleted.",
        guarantee="G1",
        old="        self._check_files(record.head.files)\n",
        new="",
        tests=(
            "tests/store/faults/test_deleted_by_hand.py"
            "::test_a_file_deleted_while_a_save_refers_to_it_is_missed_before_the_commit",
        ),
    ),
    Mutant(
        name="sequence-without-a-bound",
        breaks="One record with an invented sequence number makes every later save unreadable.",
        guarantee="G7",
        reverts="a save took a sequence number that no reader accepts",
        old="        if sequence >= names.FORGED_SEQUENCE:\n",
        new="        if False:\n",
        tests=(
            "tests/store/save/test_sequences.py"
            "::test_a_forged_number_stops_saves_until_it_is_deleted",
        ),
    ),
    Mutant(
        name="dedup-trusts-the-index",
        breaks="A save refers to a chunk that the index names, though the file has other bytes.",
        guarantee="G4",
        old="        if not self._is_usable(hint.name) or not self._is_there(found, digest):\n",
        new="        if not self._is_usable(hint.name):\n",
        tests=(
            "tests/store/schema/test_trust.py"
            "::test_a_hint_of_the_index_that_is_wrong_is_not_followed",
        ),
    ),
    Mutant(
        name="dedup-refers-to-damaged-files",
        breaks="A save refers to a file that a load has found damaged.",
        guarantee="G9",
        reverts="other hosts referred to data that one host had found damaged",
        old="dict.fromkeys(index.damaged_files(), False)",
        new="{}",
        tests=("tests/store/schema/test_damage.py::test_another_run_does_not_link_to_it",),
    ),
    Mutant(
        name="replaced-tagged-step",
        breaks="A save with replace=True replaces a checkpoint that has a tag.",
        guarantee="G12",
        old="    why = index.protected(run).get(step)\n    if why is not None:\n",
        new="    why = index.protected(run).get(step)\n    if False:\n",
        tests=("tests/store/faults/test_same_step.py::test_a_tagged_step_is_not_replaced",),
    ),
    Mutant(
        name="run-file-changed-without-reading-it-again",
        breaks="Of two changes of a run file at the same moment, one is undone.",
        guarantee="G12",
        reverts="a change of a run file was made from what had been read before the lock",
        old=(
            "            file = before = read_run(backend, run)\n"
            "        except MissingFile:\n"
            "            if known"
        ),
        new=(
            "            file = before = known or read_run(backend, run)\n"
            "        except MissingFile:\n"
            "            if known"
        ),
        tests=("tests/store/test_run_files.py::test_no_object_writes_what_others_changed",),
    ),
    Mutant(
        name="too-new-run-is-written-to",
        breaks=(
            "A save adds to a run that a newer version has written, without knowing what it needs."
        ),
        guarantee="G14",
        reverts=(
            "a record of a newer version was taken for damage, and its step could be overwritten"
        ),
        old='        raise TooNew(f"{newer}; nothing is changed in run {run}")\n',
        new="        pass\n",
        tests=(
            "tests/store/golden/test_golden.py"
            "::test_a_record_from_the_future_is_refused_by_name_and_left_alone",
        ),
    ),
    Mutant(
        name="ranks-do-not-wait-for-each-other",
        breaks="Rank 0 commits although another rank could not write its share.",
        guarantee="G6",
        old="            together(self._comm, write)\n",
        new="            write()\n",
        tests=(
            "tests/store/save/test_ranks_failing.py"
            "::test_an_operation_that_fails_on_one_rank_fails_on_all[changes-1-new]",
        ),
    ),
    Mutant(
        name="old-record-taken-for-the-outcome",
        breaks="A rank that lost the others reports an older checkpoint of the step as its own.",
        guarantee="G6",
        old="        return found if found.token == token else None\n",
        new="        return found\n",
        tests=(
            "tests/store/save/test_ranks_failing.py"
            "::test_an_old_record_of_the_step_is_not_taken_for_the_outcome",
        ),
    ),
    Mutant(
        name="error-of-rank-0-not-told",
        breaks="If rank 0 cannot begin a save, the other ranks wait until they give up.",
        guarantee="G6",
        old="                on_root(self._comm, lambda: _raise(error))\n",
        new="                pass\n",
        tests=(
            "tests/store/save/test_ranks.py"
            "::test_a_run_that_another_process_writes_is_refused_on_all_ranks",
        ),
    ),
    Mutant(
        name="replicas-not-compared",
        breaks="A tensor that differs between ranks is saved with the bytes of one of them.",
        guarantee="G4",
        old="            if digests[at : at + len(expected)] != expected:\n",
        new="            if False:\n",
        tests=(
            "tests/store/save/test_shared.py::test_what_differs_between_ranks_is_refused_by_name",
        ),
    ),
    Mutant(
        name="unchanged-tensors-written-again",
        breaks="A tensor that came back to an earlier value is stored a second time.",
        guarantee="G18",
        old="        hint = self._index.find_chunk(digest, size)\n",
        new="        hint = None\n",
        tests=("tests/store/save/test_dedup.py::test_what_came_back_to_an_earlier_value_is_found",),
    ),
)
