"""Training: resume, background saves, metrics, schedules, random states, mirrors, identities."""

from __future__ import annotations

from typing import Final

from tests.mutants.mutant import Mutant

TRAINING: Final = (
    Mutant(
        name="python-generator-not-restored",
        breaks="A resumed run draws other numbers from Python's generator.",
        guarantee="G20",
        old="        random.setstate(python)\n",
        new="        pass\n",
        tests=(
            "tests/tensors/test_randomness.py::test_after_a_restore_the_same_numbers_are_drawn",
        ),
    ),
    Mutant(
        name="numpy-generator-not-restored",
        breaks="A resumed run draws other numbers from NumPy's generator.",
        guarantee="G20",
        old="    np.random.set_state(state)\n    return []\n",
        new="    return []\n",
        tests=(
            "tests/tensors/test_randomness.py::test_after_a_restore_the_same_numbers_are_drawn",
        ),
    ),
    Mutant(
        name="torch-generator-not-restored",
        breaks="A resumed run draws other numbers from torch's generator.",
        guarantee="G20",
        old="    torch.set_rng_state(cpu)\n",
        new="",
        tests=(
            "tests/tensors/test_randomness.py::test_after_a_restore_the_same_numbers_are_drawn",
        ),
    ),
    Mutant(
        name="optimizer-not-restored",
        breaks="A resumed run begins with an empty optimizer.",
        guarantee="G20",
        old="            if name not in tree:\n                continue\n",
        new='            if name not in tree or name == "optimizer":\n                continue\n',
        tests=(
            "tests/training/test_torch.py"
            "::test_a_model_with_optimizer_and_scheduler_goes_on_exactly",
        ),
    ),
    Mutant(
        name="scheduler-not-restored",
        breaks="A resumed run begins its learning rates anew.",
        guarantee="G20",
        old="                part.restore(saved)\n            except StateMismatch as error:\n",
        new=(
            '                if name != "scheduler":\n'
            "                    part.restore(saved)\n"
            "            except StateMismatch as error:\n"
        ),
        tests=(
            "tests/training/test_torch.py"
            "::test_a_model_with_optimizer_and_scheduler_goes_on_exactly",
        ),
    ),
    Mutant(
        name="mismatch-accepted",
        breaks="A checkpoint of another model is restored as far as it fits, without an error.",
        guarantee="G20",
        old="        if self._strict and not fits.exact:\n",
        new="        if False:\n",
        tests=(
            "tests/training/test_checkpointer.py"
            "::test_another_architecture_is_refused_with_the_difference",
        ),
    ),
    Mutant(
        name="loader-position-lost",
        breaks="A resumed epoch begins with the batches that were done already.",
        guarantee="G20",
        old="        self._move(*position_in(state, self._order.fixed()))\n",
        new="        self._move(position_in(state, self._order.fixed())[0], 0)\n",
        tests=(
            "tests/torch/test_loader.py"
            "::test_batches_before_and_after_a_stop_are_those_of_a_run_without",
        ),
    ),
    Mutant(
        name="same-order-in-each-epoch",
        breaks="Each epoch has the samples in the same order.",
        guarantee="G20",
        old='        seed = np.frombuffer(_digest(self.seed, self.epoch, "order"), "<u4")\n',
        new='        seed = np.frombuffer(_digest(self.seed, 0, "order"), "<u4")\n',
        tests=(
            "tests/torch/test_loader.py::test_each_epoch_has_every_sample_in_an_order_of_its_own",
        ),
    ),
    Mutant(
        name="mixed-steps-committed",
        breaks="A state that changed while it was copied is committed: a mix of two steps.",
        guarantee="G4",
        old="        if not numbers:\n            return\n        stored =",
        new="        if True:\n            return\n        stored =",
        tests=(
            "tests/training/background/test_overlap.py"
            "::test_what_is_edited_by_hand_is_never_committed_as_the_step_before[_edit-False]",
        ),
    ),
    Mutant(
        name="staging-not-copied",
        breaks="A background save writes the bytes of an earlier save from the staging memory.",
        guarantee="G4",
        old=(
            "                    self._sources[tensor].copy_to(self._targets[tensor]["
            "start:stop], start)\n"
        ),
        new="                    pass\n",
        tests=(
            "tests/training/background/test_background.py"
            "::test_what_was_saved_is_loaded_bit_for_bit",
        ),
    ),
    Mutant(
        name="failed-save-is-silent",
        breaks="A save in the background fails, and the program is not told.",
        guarantee="G5",
        old="                self._failures.append((job.wanted.step, failure))\n",
        new="                pass\n",
        tests=(
            "tests/training/background/test_failures.py"
            "::test_a_disk_that_takes_no_more_is_reported_at_the_next_call",
        ),
    ),
    Mutant(
        name="commit-without-the-lock",
        breaks="A process whose lock was deleted commits into a run that another one has taken.",
        guarantee="G3",
        old=(
            "        if not self.is_locking():\n"
            '            raise RunBusy(f"run {self._run}: its lock was deleted'
        ),
        new=(
            '        if False:\n            raise RunBusy(f"run {self._run}: its lock was deleted'
        ),
        tests=(
            "tests/training/background/test_failures.py"
            "::test_a_run_whose_lock_was_deleted_is_not_committed_into",
        ),
    ),
    Mutant(
        name="run-not-claimed",
        breaks="Two processes write into one run.",
        guarantee="G3",
        old="        if self._lock is None:\n            raise RunBusy(\n",
        new="        if False:\n            raise RunBusy(\n",
        tests=("tests/store/faults/test_two_writers.py::test_into_one_run_one_process_writes",),
    ),
    Mutant(
        name="equal-metric-is-better",
        breaks="The best checkpoint changes when a later one has the same metric.",
        guarantee="G13",
        old="        return self.value is None or self._sign * value < self._sign * self.value\n",
        new=(
            "        return self.value is None or self._sign * value <= self._sign * self.value\n"
        ),
        tests=(
            "tests/training/test_checkpointer.py"
            "::test_the_best_is_the_strictly_better_one_and_never_nan",
        ),
    ),
    Mutant(
        name="schedule-off-by-one",
        breaks="A run saves a step after each one that the schedule names.",
        old="        return bool((step - self.start) % self.interval == 0)\n",
        new="        return bool((step - self.start) % self.interval == 1 % self.interval)\n",
        tests=("tests/test_schedule.py::test_a_schedule_is_due_every_interval_from_its_start",),
    ),
    Mutant(
        name="metrics-cut-one-step-too-early",
        breaks="A resume drops the metrics of the step that it goes on from.",
        guarantee="G20",
        old='            stays = _decoded(line, f"{path}: line {number}").step <= step\n',
        new='            stays = _decoded(line, f"{path}: line {number}").step < step\n',
        tests=("tests/training/test_metrics.py::test_a_cut_drops_the_lines_of_later_steps",),
    ),
    Mutant(
        name="metrics-not-cut-on-resume",
        breaks="After a resume, the metrics log has some steps twice.",
        guarantee="G20",
        old="                self._log.cut(self._step)\n",
        new="                pass\n",
        tests=(
            "tests/training/test_checkpointer.py"
            "::test_every_metric_is_in_the_log_which_is_cut_back_on_resume",
        ),
    ),
    Mutant(
        name="signal-without-a-save",
        breaks="A program that is asked to end loses the steps since its last save.",
        guarantee="G20",
        old=(
            "        self._save(midway=self._epoch.is_midway() and not once)\n        self.wait()\n"
        ),
        new="        self.wait()\n",
        tests=(
            "tests/training/test_signals.py"
            "::test_a_signal_makes_the_next_step_save_and_the_loop_end",
        ),
    ),
    Mutant(
        name="origin-not-pinned",
        breaks="The checkpoint that a run goes on from is deleted while the run needs it.",
        guarantee="G13",
        old="        self._pin = pin(self._run.store.backend, run, int(step))\n",
        new="",
        tests=("tests/training/test_retention.py::test_where_a_run_came_from_stays_while_it_runs",),
    ),
    Mutant(
        name="environment-moves-the-store",
        breaks="$STANDFAST_STORE overrides the store that a program names.",
        reverts="checkpoints went to the store of the environment, not to that of the program",
        old="    elsewhere = os.environ.get(PROOF)\n",
        new='    elsewhere = os.environ.get(PROOF) or os.environ.get("STANDFAST_STORE")\n',
        tests=(
            "tests/training/test_checkpointer.py"
            "::test_the_environment_does_not_move_the_store_that_a_program_names",
        ),
    ),
    Mutant(
        name="name-is-not-identity",
        breaks="Two programs with other names and equal settings share a run and its weights.",
        reverts="a name did not count, and the second program got the first one's weights",
        old="        else _settings_digest(hp, name if trial is None else trial, volatile),\n",
        new="        else _settings_digest(hp, trial, volatile),\n",
        tests=("tests/identity/test_identity.py::test_the_name_is_the_trial_where_none_is_given",),
    ),
    Mutant(
        name="hyperparameter-ignored",
        breaks="Two experiments that differ in the learning rate share a hash.",
        old='        settings["hp"] = Canonical("hp", skipped=IGNORED.union(names)).encode(hp)\n',
        new=(
            '        settings["hp"] = Canonical("hp", skipped=IGNORED.union(names, '
            '["lr"])).encode(hp)\n'
        ),
        tests=(
            "tests/identity/test_identity.py"
            "::test_the_example_of_the_documentation_has_the_digests_that_it_gives",
        ),
    ),
    Mutant(
        name="failing-start-deletes-an-old-run",
        breaks="A start that fails deletes a run that was there before.",
        guarantee="G14",
        old=(
            "            if self._is_ours and self._is_new:\n"
            "                self._run.delete_empty()\n"
        ),
        new="            if self._is_ours:\n                self._run.delete_all()\n",
        tests=(
            "tests/training/test_failed_starts.py::test_what_another_process_saved_into_it_stays",
        ),
    ),
    Mutant(
        name="mirror-without-copies",
        breaks="The mirror lacks a checkpoint, and the program believes it is there.",
        old="        if other is None:\n            return True\n        if other.sequence",
        new="        if other is None:\n            return False\n        if other.sequence",
        tests=(
            "tests/training/mirror/test_upload.py::test_the_newest_go_first_and_arrive_as_they_are",
        ),
    ),
    Mutant(
        name="mirror-replaces-what-is-tagged",
        breaks="A save that was repeated replaces a checkpoint that has a tag in the mirror.",
        guarantee="G12",
        reverts="a checkpoint with a tag in the mirror was replaced by a later save of its step",
        old=(
            "        if other.sequence < head.sequence and other.time < head.time and "
            "kept is None:\n"
        ),
        new="        if other.sequence < head.sequence and other.time < head.time:\n",
        tests=(
            "tests/training/mirror/test_upload.py"
            "::test_what_is_marked_in_the_mirror_is_not_replaced_by_a_later_save",
        ),
    ),
    Mutant(
        name="mirror-without-tags",
        breaks="A tag is lost with the machine: the mirror does not have it.",
        guarantee="G12",
        old="        tags=[*theirs.tags, *tags],\n",
        new="        tags=[*theirs.tags],\n",
        tests=(
            "tests/training/mirror/test_upload.py"
            "::test_tags_and_late_metrics_follow_and_those_of_the_mirror_stay",
        ),
    ),
    Mutant(
        name="failure-of-a-rank-not-heard",
        breaks="A rank goes on though another one has failed.",
        guarantee="G6",
        old="    if any(failed for failed, _ in told):\n",
        new="    if False:\n",
        tests=("tests/store/save/test_ranks.py::test_what_one_rank_cannot_save_is_refused_on_all",),
    ),
)
