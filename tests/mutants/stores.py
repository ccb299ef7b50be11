"""A store: refs, marks, retention, the trash, damage, repair, queries, copies and backends."""

from __future__ import annotations

from typing import Final

from tests.mutants.mutant import Mutant

STORES: Final = (
    Mutant(
        name="latest-by-step",
        breaks="`latest` is the highest step instead of the last commit.",
        guarantee="G7",
        old=(
            '                f"ORDER BY sequence DESC, run DESC, step DESC LIMIT {page} '
            'OFFSET {offset}",\n'
        ),
        new='                f"ORDER BY step DESC, run DESC LIMIT {page} OFFSET {offset}",\n',
        tests=(
            "tests/store/test_refs.py"
            "::test_latest_is_the_last_commit_whatever_the_step_and_the_clock",
        ),
    ),
    Mutant(
        name="tags-do-not-protect",
        breaks="A checkpoint with a tag can be deleted.",
        guarantee="G12",
        old='            elif tags != "[]":\n',
        new="            elif False:\n",
        tests=(
            "tests/store/schema/test_marks.py"
            "::test_a_tagged_checkpoint_is_neither_deleted_nor_replaced",
        ),
    ),
    Mutant(
        name="unreadable-marks-do-not-protect",
        breaks="A checkpoint whose marks cannot be read, and may have a tag, is deleted.",
        guarantee="G12",
        old='            if problem is not None:\n                found[step] = f"may be tagged',
        new='            if False:\n                found[step] = f"may be tagged',
        tests=(
            "tests/store/schema/test_marks.py"
            "::test_marks_that_cannot_be_read_protect_what_they_may_have_tagged",
        ),
    ),
    Mutant(
        name="marks-without-a-token",
        breaks=(
            "The notes and late metrics of a deleted checkpoint appear on the next of its step."
        ),
        guarantee="G12",
        reverts="notes and late metrics outlived the checkpoint that they were about",
        old="    return marks if marks.place == place else none\n",
        new="    return marks\n",
        tests=(
            "tests/store/schema/test_marks.py"
            "::test_marks_do_not_survive_the_replacement_of_their_checkpoint",
        ),
    ),
    Mutant(
        name="tag-given-to-a-replaced-checkpoint",
        breaks="A tag is put on a checkpoint that another process has saved again meanwhile.",
        guarantee="G12",
        old=(
            "    if head.place != place:\n"
            "        raise RefNotFound(\n"
            '            f"{place.run}@{place.step} was saved again'
        ),
        new=(
            "    if False:\n"
            "        raise RefNotFound(\n"
            '            f"{place.run}@{place.step} was saved again'
        ),
        tests=(
            "tests/store/schema/test_marks.py"
            "::test_who_has_the_old_checkpoint_changes_no_marks_of_the_new_one",
        ),
    ),
    Mutant(
        name="best-marked-number-without-a-bound",
        breaks="One number in copied marks stops every query of the store.",
        guarantee="G10",
        reverts="a number of 2^63 in marks stopped every query",
        old="    if not 0 <= (marks.best or 0) < names.MAX_SEQUENCE:\n",
        new="    if False:\n",
        tests=(
            "tests/store/save/test_sequences.py"
            "::test_marks_with_a_number_beyond_the_bound_are_damaged_and_spoil_nothing",
        ),
    ),
    Mutant(
        name="damage-not-recorded",
        breaks="What one process found damaged, all others go on referring to.",
        guarantee="G9",
        reverts="damage was known to the index of one host only",
        old="    with suppress(StandfastError):\n        backend.create(_path(name), text)\n",
        new="",
        tests=(
            "tests/store/schema/test_damage.py"
            "::test_a_rotten_chunk_is_not_referred_to_once_it_was_found",
        ),
    ),
    Mutant(
        name="damage-hidden-where-it-cannot-be-recorded",
        breaks="A server that cannot be written to keeps `latest` from falling back.",
        guarantee="G10",
        reverts="the attempt to record damage hid the damage itself",
        old="    with suppress(StandfastError):\n        backend.create(_path(name), text)\n",
        new="    backend.create(_path(name), text)\n",
        tests=(
            "tests/store/remote/test_conditions.py"
            "::test_damage_is_reported_and_falls_back_on_a_server_that_cannot_be_written_to",
        ),
    ),
    Mutant(
        name="retention-without-a-verified-checkpoint",
        breaks="Retention deletes the last checkpoint that is intact.",
        guarantee="G13",
        old="    _check_intact(store, run, found, locked=True)  # of what is there now\n",
        new="",
        tests=(
            "tests/store/retention/test_retaining.py"
            "::test_what_is_kept_since_the_last_moment_must_be_intact",
        ),
    ),
    Mutant(
        name="retention-not-decided-again-under-the-lock",
        breaks="Retention deletes a checkpoint that got a tag, or a reader, at the last moment.",
        guarantee="G13",
        reverts="retention deleted on what it had read before the lock",
        old=(
            "                if _seen(store, run) != seen:  # saves, tags, readers or "
            "another retention\n"
        ),
        new="                if False:\n",
        tests=(
            "tests/store/retention/test_retaining.py"
            "::test_what_becomes_protected_in_the_last_moment_stays",
        ),
    ),
    Mutant(
        name="retention-with-unreadable-records",
        breaks="Retention deletes though it cannot read what a record refers to.",
        guarantee="G14",
        old="        if retention != Retention():\n            raise Protected(",
        new="        if False:\n            raise Protected(",
        tests=(
            "tests/store/retention/test_retaining.py"
            "::test_of_a_run_with_a_record_that_cannot_be_read_nothing_is_deleted",
        ),
    ),
    Mutant(
        name="latest-not-protected",
        breaks="A policy deletes the latest checkpoint of a run.",
        guarantee="G13",
        old='        found[latest.step] = ("the latest of its run",)\n',
        new="        pass\n",
        tests=(
            "tests/store/retention/test_retaining.py"
            "::test_the_latest_the_best_and_the_tagged_stay_whatever_is_said",
        ),
    ),
    Mutant(
        name="best-not-protected",
        breaks="A policy deletes the best checkpoint of a run.",
        guarantee="G13",
        old='        found[best.step] = (*found.get(best.step, ()), "the best of its run")\n',
        new="        pass\n",
        tests=(
            "tests/store/retention/test_retaining.py"
            "::test_the_latest_the_best_and_the_tagged_stay_whatever_is_said",
        ),
    ),
    Mutant(
        name="checkpoint-in-use-not-protected",
        breaks="A policy deletes a checkpoint that another process is reading.",
        guarantee="G13",
        old=(
            "    for step in pinned_steps(store.backend, run):\n"
            "        found[step] = (*found.get(step, ()), IN_USE)\n"
        ),
        new="",
        tests=(
            "tests/store/retention/test_retaining.py"
            "::test_a_checkpoint_in_use_stays_and_goes_when_it_is_not",
        ),
    ),
    Mutant(
        name="new-run-deleted-with-its-records",
        breaks="A start that fails deletes a run into which another process has saved.",
        guarantee="G14",
        reverts="a failed start deleted the run that it believed new",
        old=(
            '        if any(named is not None and named.kind == "record" for named in '
            "listed):\n"
            "            return False\n"
        ),
        new="",
        tests=(
            "tests/training/test_failed_starts.py::test_what_another_process_saved_into_it_stays",
        ),
    ),
    Mutant(
        name="record-deleted-after-its-data",
        breaks="A power cut during a deletion leaves a record whose data is gone.",
        guarantee="G1",
        old=(
            "    backend.sync(folder)  # no record may come back that refers to what is "
            "deleted next\n"
        ),
        new="",
        tests=(
            "tests/store/faults/test_power_loss.py"
            "::test_a_power_cut_at_any_moment_leaves_the_old_state_or_the_new_one",
        ),
    ),
    Mutant(
        name="index-decides-what-is-deleted",
        breaks="An index that is wrong has data files deleted which records refer to.",
        guarantee="G14",
        old="for name in left if used is not None and name not in used)\n",
        new="for name in left)\n",
        tests=(
            "tests/store/schema/test_trust.py::test_nothing_is_deleted_because_the_index_says_so",
        ),
    ),
    Mutant(
        name="trash-without-data",
        breaks="What is restored from the trash has no data.",
        guarantee="G15",
        old=(
            '                files |= dict.fromkeys(f"{folder}/{file.name}" for file in '
            "head.files)\n"
        ),
        new="",
        tests=("tests/store/retention/test_trash.py::test_what_was_deleted_comes_back_as_it_was",),
    ),
    Mutant(
        name="trash-emptied-of-what-cannot-be-read",
        breaks="An entry of the trash that cannot be read at the moment is deleted for its age.",
        guarantee="G14",
        old="                if is_all or (is_due and entry.problem is None):\n",
        new="                if is_all or is_due:\n",
        tests=(
            "tests/store/retention/test_trash.py"
            "::test_an_entry_that_cannot_be_read_does_not_go_for_its_space",
        ),
    ),
    Mutant(
        name="doctor-mends-from-before-the-lock",
        breaks=(
            "`doctor` undoes what another process changes in a record while it looks for copies."
        ),
        guarantee="G12",
        reverts="doctor wrote records back as it had read them before the lock",
        old=(
            "            with changing(self._backend, self._index, self._run):\n"
            "                self._mend_record(ref, read_record(self._backend, "
            "self._run, step))\n"
        ),
        new=(
            "            record = read_record(self._backend, self._run, step)\n"
            "            with changing(self._backend, self._index, self._run):\n"
            "                self._mend_record(ref, record)\n"
        ),
        tests=(
            "tests/store/maintenance/test_doctor.py"
            "::test_parts_that_retention_drops_meanwhile_stay_dropped",
        ),
    ),
    Mutant(
        name="doctor-without-run-files",
        breaks="A run file that is damaged is not repaired from the copy of its configuration.",
        guarantee="G10",
        reverts="a damaged run file was not repaired",
        old=(
            "        if file is not None:\n"
            "            write_run(self._backend, file)\n"
            "        return file is not None\n"
        ),
        new="        return file is not None\n",
        tests=("tests/store/test_run_files.py::test_doctor_restores_each_file_from_the_other",),
    ),
    Mutant(
        name="doctor-calls-deleted-files-damaged",
        breaks="A run that is deleted and restored while `doctor` reads it is called damaged.",
        guarantee="G9",
        reverts="a file that is not needed any more was marked as damaged",
        old="            bad = self._bad_chunks(file, found) and self._still_bad(file, found)\n",
        new="            bad = self._bad_chunks(file, found)\n",
        tests=(
            "tests/store/maintenance/test_doctor.py"
            "::test_a_file_that_is_deleted_and_restored_during_an_examination_is_not_damaged",
        ),
    ),
    Mutant(
        name="verify-stops-at-the-first-damage",
        breaks="`verify --all` reports one damaged file, and reads none after it.",
        guarantee="G9",
        reverts="verify stopped at the first file that was damaged",
        old=(
            "            except StandfastError as error:\n"
            "                self._lost[name] = error\n"
        ),
        new=(
            "            except StandfastError as error:\n"
            "                self._lost[name] = error\n"
            "                break\n"
        ),
        tests=(
            "tests/store/maintenance/test_verify.py"
            "::test_all_damaged_data_files_of_a_run_are_listed",
        ),
    ),
    Mutant(
        name="verify-newest-first",
        breaks="`verify --oldest` verifies the same checkpoints each time.",
        guarantee="G9",
        reverts="data that was never verified again rotted without being noticed",
        old='        return is_last, verified[head.run].get(head.step, ""), head.sequence\n',
        new='        return is_last, "", -head.sequence\n',
        tests=(
            "tests/store/maintenance/test_verify.py"
            "::test_the_oldest_are_verified_first_and_the_check_is_recorded",
        ),
    ),
    Mutant(
        name="verify-without-companion-files",
        breaks="`verify --all` calls a store sound whose run files are damaged.",
        guarantee="G9",
        reverts="verify read records and data files only",
        old=(
            "        for name, error in wrong_beside(store.backend, listed.run).items():\n"
            "            found.add(name, error)\n"
        ),
        new="",
        tests=(
            "tests/store/maintenance/test_verify.py::test_a_flipped_bit_is_reported_with_its_file",
        ),
    ),
    Mutant(
        name="fall-back-without-a-warning",
        breaks="`latest` gives an older checkpoint, and says nothing.",
        guarantee="G10",
        old=(
            "            if found:\n"
            "                _fell_back(found, checkpoint)\n"
            "            return result\n"
        ),
        new="            return result\n",
        tests=("tests/store/test_refs.py::test_latest_falls_back_and_says_so",),
    ),
    Mutant(
        name="fall-back-past-what-cannot-be-read-now",
        breaks="If a file cannot be opened at the moment, an older checkpoint is loaded.",
        guarantee="G10",
        old=(
            "            except (DamagedFile, UnreadableFile) as error:\n"
            "                if not is_damage(error):\n"
            "                    raise\n"
            "                found.append"
        ),
        new=(
            "            except (DamagedFile, UnreadableFile) as error:\n"
            "                found.append"
        ),
        tests=(
            "tests/store/schema/test_trust.py::test_too_many_open_files_are_no_reason_to_fall_back",
        ),
    ),
    Mutant(
        name="aliases-lost",
        breaks="Tied weights come back as two tensors.",
        guarantee="G4",
        old="                base = arrays[view.base].reshape(-1).view(np.uint8)\n",
        new="                base = arrays[view.base].reshape(-1).view(np.uint8).copy()\n",
        tests=("tests/store/test_save_load.py::test_tied_tensors_change_together",),
    ),
    Mutant(
        name="data-file-of-another-size-is-read",
        breaks="A data file that was cut is opened, and is found out much later.",
        guarantee="G9",
        old=(
            "                if file.size != expected.size:\n"
            "                    raise TruncatedFile("
        ),
        new="                if False:\n                    raise TruncatedFile(",
        tests=(
            "tests/store/faults/test_data_files.py"
            "::test_a_file_that_is_gone_or_of_another_size_is_found_before_anything_is_read",
        ),
    ),
    Mutant(
        name="dropped-part-that-others-need",
        breaks="A part that is dropped takes the tensors of other parts in its memory with it.",
        guarantee="G13",
        old=(
            "    if any(n in numbers and view.base in lost for n, view in "
            "record.views.items()):\n"
            "        return None\n"
        ),
        new="",
        tests=(
            "tests/store/retention/test_retaining.py::test_a_part_that_others_need_is_not_dropped",
        ),
    ),
    Mutant(
        name="deleted-sequence-used-again",
        breaks="After the latest checkpoint is deleted, the next save gets its sequence number.",
        guarantee="G7",
        old="            remember_highest(backend, highest)\n",
        new="            pass\n",
        tests=(
            "tests/store/save/test_sequences.py"
            "::test_the_number_of_a_deleted_checkpoint_is_never_used_again",
        ),
    ),
    Mutant(
        name="reader-does-not-look-again",
        breaks="A load of `latest` fails if that is deleted at the same moment.",
        guarantee="G8",
        old=(
            "            except RefNotFound:\n"
            "                break  # deleted or replaced this moment: look again\n"
        ),
        new="            except RefNotFound:\n                raise\n",
        tests=("tests/store/test_refs.py::test_a_latest_that_is_replaced_meanwhile_is_the_latest",),
    ),
    Mutant(
        name="damaged-index-is-kept",
        breaks="A damaged index keeps a store from being read.",
        guarantee="G17",
        old="                if is_broken:\n                    self._delete()\n",
        new="                if is_broken:\n                    raise\n",
        tests=("tests/store/faults/test_views.py::test_a_view_that_is_damaged_is_made_again",),
    ),
    Mutant(
        name="leftovers-of-a-killed-save-stay",
        breaks="The files that a killed save left are never deleted.",
        guarantee="G16",
        old="            sweep(self._backend, self._index, self._run)\n\n\n_writers:",
        new="            pass\n\n\n_writers:",
        tests=(
            "tests/store/retention/test_delete.py"
            "::test_what_a_crash_left_is_deleted_with_the_next_writer",
        ),
    ),
)
