"""Frameworks, simulations, packages, experiments, the command line, the dashboard, servers."""

from __future__ import annotations

from typing import Final

from tests.mutants.mutant import Mutant

PROGRAMS: Final = (
    Mutant(
        name="conditional-writes-not-probed",
        breaks="On a server that ignores If-None-Match, several processes claim one run.",
        guarantee="G3",
        reverts="three of three processes were told that they had claimed a run",
        old='            self._check_refused("If-None-Match", key, create=True)\n',
        new="",
        tests=("tests/store/remote/test_conditions.py::test_it_is_refused_before_the_first_write",),
    ),
    Mutant(
        name="lease-of-another-is-taken",
        breaks="A lock in an object store is taken from a process that still holds it.",
        guarantee="G3",
        old="        return self.now() - meta.time > note.lease + _SLACK\n",
        new="        return True\n",
        tests=(
            "tests/store/remote/test_locks.py"
            "::test_a_holder_elsewhere_is_respected_until_its_lease_ends",
        ),
    ),
    Mutant(
        name="lightning-deletes-a-run-that-cannot-be-read",
        breaks="remove_checkpoint deletes a run because its other record cannot be read now.",
        guarantee="G14",
        reverts="Lightning's remove_checkpoint deleted a run with a record that could not be read",
        old=(
            "        return any(step != pointer.step for step in "
            "self.store.index.steps(pointer.run))\n"
        ),
        new=(
            "        return any(step != pointer.step for step in "
            "self.store.index.sequences(pointer.run))\n"
        ),
        tests=("tests/lightning/test_io.py::test_a_run_stays_whose_other_record_cannot_be_read",),
    ),
    Mutant(
        name="lightning-random-states-not-restored",
        breaks="A training of Lightning resumes with other random numbers.",
        guarantee="G20",
        old='            inexact += randomness.restore(own["random"])\n',
        new="            pass\n",
        tests=(
            "tests/lightning/test_callback.py"
            "::test_a_training_that_goes_on_ends_as_if_it_had_never_stopped[epochs]",
        ),
    ),
    Mutant(
        name="url-taken-for-a-path",
        breaks=(
            "A URL becomes a folder called `s3:` on this machine, and nothing is in the bucket."
        ),
        reverts="a URL was taken for a path, and the checkpoints stayed on this machine",
        old="    if not _URL.match(text) and not _FLATTENED.match(text):\n        return\n",
        new="    return\n",
        tests=("tests/test_urls.py::test_a_function_refuses_a_url_and_makes_nothing[save]",),
    ),
    Mutant(
        name="convert-overwrites",
        breaks="`convert` replaces a file that is there.",
        reverts="convert overwrote its target without asking",
        old=(
            "    if not replace and os.path.lexists(target):\n"
            '        raise AlreadyExists(errno.EEXIST, f"{path} exists: replace'
        ),
        new='    if False:\n        raise AlreadyExists(errno.EEXIST, f"{path} exists: replace',
        tests=("tests/tensorfile/test_convert.py::test_a_file_is_replaced_only_if_asked",),
    ),
    Mutant(
        name="convert-without-reading-back",
        breaks="A conversion that wrote something else is reported as proven.",
        guarantee="G9",
        old=(
            "                [name for name in {**read, **again} if read.get(name) != "
            "again.get(name)]\n"
        ),
        new="                []\n",
        tests=(
            "tests/tensorfile/test_convert.py"
            "::test_a_disk_that_loses_a_bit_is_caught_before_the_new_file_takes_its_name",
        ),
    ),
    Mutant(
        name="diff-of-damaged-files",
        breaks="`diff` calls two files equal of which one is damaged.",
        guarantee="G9",
        reverts="diff compared the digests alone, and ended with 0 for a damaged file",
        old="    for side in () if differs else sides:\n",
        new="    for side in ():\n",
        tests=(
            "tests/cli/commands/test_reading.py::test_a_damaged_file_of_equal_digests_is_damage",
        ),
    ),
    Mutant(
        name="empty-store-instead-of-an-error",
        breaks="A mistyped store looks like one without runs.",
        reverts="a store that does not exist was read as an empty one",
        old=(
            "        if self.backend.version(names.MODELS) is None:\n            raise NotAStore(\n"
        ),
        new="        if False:\n            raise NotAStore(\n",
        tests=(
            "tests/store/test_refs.py::test_a_query_of_what_is_no_store_says_so_and_writes_nothing",
        ),
    ),
    Mutant(
        name="thread-that-cannot-start-is-waited-for",
        breaks="Without memory for a thread, a save or load fails with an error of Python.",
        reverts="a thread that had no memory to begin ended the save, or hung it",
        old=(
            "            except (RuntimeError, MemoryError):\n                with self._guard:\n"
        ),
        new="            except ZeroDivisionError:\n                with self._guard:\n",
        tests=(
            "tests/files/test_threads.py"
            "::test_the_caller_runs_the_tasks_if_no_thread_can_be_started",
        ),
    ),
    Mutant(
        name="tensors-that-overlap-are-filled",
        breaks="A load into an expanded tensor keeps one value of several.",
        guarantee="G4",
        reverts="filling a tensor whose elements share memory lost values without an error",
        old=(
            "    if value.layout is torch.strided and may_overlap(value.shape, "
            "value.stride(), 1):\n"
        ),
        new="    if False:\n",
        tests=("tests/torch/test_state.py::test_elements_that_share_memory_are_not_filled",),
    ),
    Mutant(
        name="big-endian-array-not-swapped",
        breaks="A big-endian array is saved with its bytes in the wrong order.",
        guarantee="G4",
        old='        self._little = array.dtype if little else array.dtype.newbyteorder("<")\n',
        new="        self._little = array.dtype\n",
        tests=(
            "tests/store/test_save_load.py"
            "::test_arrays_come_back_whatever_their_strides_and_byte_order",
        ),
    ),
    Mutant(
        name="package-uploaded-in-place",
        breaks="A save over a package at a URL that is interrupted destroys the old one.",
        guarantee="G1",
        reverts="a package at a URL was overwritten in place, which destroyed the old one first",
        old=(
            "    try:\n"
            "        for name, target in zip(names, uploaded, strict=True):\n"
            "            home.upload(target, aside / name)\n"
        ),
        new=(
            "    try:\n"
            "        home.delete(replaced)\n"
            "        for name, target in zip(names, uploaded, strict=True):\n"
            "            home.upload(target, aside / name)\n"
        ),
        tests=(
            "tests/packages/test_remote.py"
            "::test_a_save_that_ends_at_any_request_leaves_the_old_package_or_the_new"
            "[copied, before]",
        ),
    ),
    Mutant(
        name="package-digest-not-checked",
        breaks="A file of a package that was changed is loaded without an error.",
        guarantee="G9",
        old="    if found == expected:\n        return\n",
        new="    return\n",
        tests=("tests/packages/model/test_folder.py::test_a_file_that_is_damaged_is_named",),
    ),
    Mutant(
        name="package-link-out-of-its-folder",
        breaks="A package with a link makes a program read any file of the machine.",
        guarantee="G11",
        old="        if os.path.commonpath((os.path.realpath(link.path), home)) != home:\n",
        new="        if False:\n",
        tests=(
            "tests/packages/model/test_folder.py"
            "::test_a_link_out_of_the_folder_is_refused",
        ),
    ),
    Mutant(
        name="archive-path-traversal",
        breaks="An archive writes files outside of the folder that it is unpacked into.",
        guarantee="G11",
        old="    if not all(map(_is_name, (top, *names))):\n",
        new="    if False:\n",
        tests=(
            "tests/packages/test_archive.py::test_a_hostile_archive_is_refused_and_leaves_nothing",
        ),
    ),
    Mutant(
        name="hyperparameters-as-json",
        breaks="Hyperparameters come back as JSON has them: tuples as lists, infinity as text.",
        reverts="resuming from loaded hyperparameters made another experiment",
        old="        return exact_value(self.hyperparameters, self.exact)\n",
        new="        return self.hyperparameters\n",
        tests=(
            "tests/experiments/test_manager.py"
            "::test_loaded_hyperparameters_continue_the_experiment",
        ),
    ),
    Mutant(
        name="manifest-with-the-oldest-run",
        breaks="Programs that know layout V3 go on from the wrong experiment.",
        old='    latest = next(index.newest(), None)\n    yield f"latest_hash',
        new='    latest = [*index.newest(), None][-2]\n    yield f"latest_hash',
        tests=("tests/store/index/test_manifest.py::test_it_has_the_keys_of_layout_v3",),
    ),
    Mutant(
        name="manifest-renamed-when-it-cannot-be-read",
        breaks="A disk that cannot read for a moment costs another program its manifest.",
        guarantee="G14",
        reverts="a manifest that could not be read at the moment was renamed and replaced",
        old=(
            "    except (DamagedFile, AttributeError, LookupError, TypeError):\n"
            "        path.replace"
        ),
        new=(
            "    except (DamagedFile, OSError, AttributeError, LookupError, TypeError):\n"
            "        path.replace"
        ),
        tests=(
            "tests/store/index/test_manifest.py"
            "::test_a_manifest_that_the_disk_cannot_read_now_keeps_its_name",
        ),
    ),
    Mutant(
        name="folder-swapped-before-it-is-durable",
        breaks="After a power cut, a package that was saved over another one lacks files.",
        guarantee="G2",
        old="        disk.sync_folder(new.path)\n        olds = _take_place(place, new)\n",
        new="        olds = _take_place(place, new)\n",
        tests=(
            "tests/files/folder_swap/test_swap.py"
            "::test_a_power_cut_at_any_moment_leaves_the_old_folder_or_the_new_one",
        ),
    ),
    Mutant(
        name="dcp-ranks-choose-for-themselves",
        breaks="With DCP, ranks load different checkpoints.",
        guarantee="G6",
        old=(
            "        if place is None or place == self._chosen().checkpoint.head.place:\n"
            "            return self._chosen()\n"
        ),
        new="        return self._chosen()\n",
        tests=("tests/dcp/test_store.py::test_a_rank_follows_the_coordinator_or_says_why_not",),
    ),
    Mutant(
        name="dcp-box-at-the-wrong-place",
        breaks="With DCP, each rank fills its shard with the first rows of the tensor.",
        guarantee="G4",
        old=(
            "    offsets = tuple(a + b for a, b in zip(begin, item.storage_offsets, "
            "strict=True))\n"
            "    box ="
        ),
        new="    offsets = tuple(item.storage_offsets)\n    box =",
        tests=("tests/dcp/test_store.py::test_on_ranks",),
    ),
    Mutant(
        name="ghosts-not-exchanged",
        breaks="A block at the border of a rank computes with zeros instead of its neighbour.",
        old=(
            "        _place(ghosts, pieces, *_unpacked(arrived[rank], pieces, "
            "tree.frontend), tree.frontend)\n"
        ),
        new="        pass\n",
        tests=("tests/amr/ghosts/test_fields.py::test_ghosts_follow_the_blocks_of_other_ranks",),
    ),
    Mutant(
        name="ghosts-of-coarser-blocks-mixed-up",
        breaks="The layer next to a coarser block is taken from the wrong part of it.",
        old=(
            "            copies.append(_pieces(rest, face, found, 1 + "
            "places.child_numbers(origins)))\n"
        ),
        new="            copies.append(_pieces(rest, face, found, np.ones_like(found)))\n",
        tests=("tests/amr/ghosts/test_fields.py::test_ghosts_are_those_found_site_by_site",),
    ),
    Mutant(
        name="restriction-not-a-mean",
        breaks="A block that is coarsened has the sum of what it covers.",
        old="    numbers *= 0.5**nd\n",
        new="",
        tests=(
            "tests/amr/mesh/test_restriction.py::test_the_parent_has_the_mean_of_what_it_covers",
        ),
    ),
    Mutant(
        name="imported-files-of-different-steps",
        breaks="Files of different steps are imported as one snapshot.",
        guarantee="G4",
        old=(
            '        raise RanksDisagree(f"the ranks do not agree on the step: {told}; '
            'give files of one step")\n'
        ),
        new="        pass\n",
        tests=(
            "tests/amr/snapshot/test_import.py"
            "::test_files_of_different_steps_are_refused_with_the_step_of_each_rank",
        ),
    ),
    Mutant(
        name="dashboard-without-a-token",
        breaks="Everyone on the network reads the store through the dashboard.",
        old=(
            '        if _is_same(_cookies(headers).get(cookie, ""), self._session):\n'
            "            return None\n"
        ),
        new="        return None\n",
        tests=("tests/web/test_security.py::test_beyond_this_machine_a_token_is_needed",),
    ),
    Mutant(
        name="dashboard-host-not-checked",
        breaks="A page of another site reads the store through the user's browser.",
        old="        if len(hosts) != 1 or not self._is_ours(hosts[0].lower(), scope):\n",
        new="        if len(hosts) != 1:\n",
        tests=("tests/web/test_security.py::test_it_answers_to_its_own_names_alone",),
    ),
    Mutant(
        name="dashboard-shows-hidden-files",
        breaks="The dashboard shows files outside of the folder, or hidden in it.",
        guarantee="G11",
        old='    if any(not part or part.startswith(".") for part in parts):\n',
        new="    if False:\n",
        tests=("tests/web/test_files.py::test_a_path_that_no_listing_gives_is_refused",),
    ),
    Mutant(
        name="dashboard-does-not-escape",
        breaks="A name in a store runs a script in the dashboard.",
        guarantee="G11",
        old=(
            '    loader=FileSystemLoader(_HERE / "templates"), autoescape=True, auto_reload=False\n'
        ),
        new=(
            '    loader=FileSystemLoader(_HERE / "templates"), autoescape=False, '
            "auto_reload=False\n"
        ),
        tests=("tests/web/test_security.py::test_what_is_in_an_address_is_text_on_its_page",),
    ),
)
