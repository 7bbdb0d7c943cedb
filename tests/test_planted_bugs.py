"""The tests can fail: each planted bug below must be caught by the tests named beside it.

    row -> source text with the bug -> child pytest that imports it in place of the real module -> must fail

No file of the repository is touched. The child finds a `sitecustomize.py` first on its path; that puts a
finder in front of all others which compiles the given text for its module and leaves the rest alone, so
it works for editable installs, wheels and plain checkouts, and for processes that the tests start.

A row proves something only if its tests pass without the bug, if the module was really imported, and if
the old text is still there; each of these is checked too. Text that a module reads from its own file
(Triton kernels do) is not mutated. Where the child leaves tests out for what this machine lacks, the row says
nothing, and is left out for the same reason.
"""

import os
import subprocess
import sys
import xml.etree.ElementTree as ElementTree
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
DEADLINE_S = 500.0
"""For a hang: a child takes seconds, on a busy machine a minute."""


# (file, text that occurs in it exactly once, text with the bug, tests that must catch it)
BUGS: list[tuple[str, str, str, str]] = [
    (
        "train/algorithm/roc.py",
        "i: 1.0 / (eps + penalties_N[i].total)",
        "i: eps + penalties_N[i].total",
        "tests/train/algorithm/test_roc.py::test_paper_mode_draws_positives_as_successive_weighted_picks",
    ),
    (
        "train/algorithm/roc.py",
        "rng.sample(negatives, num_negative)",
        "negatives[:num_negative]",
        "tests/train/algorithm/test_roc.py::test_negatives_are_drawn_uniformly",
    ),
    (
        "train/algorithm/advantage.py",
        "/ (len(rewards_G) - 1)",
        "/ len(rewards_G)",
        "tests/train/algorithm/test_advantage.py",
    ),
    (
        "train/algorithm/advantage.py",
        "(reward - mean) / (",
        "reward / (",
        "tests/train/algorithm/test_advantage.py",
    ),
    ("train/batch.py", "if not example.mask[k]:", "if not example.mask[k - 1]:", "tests/train/test_batch.py"),
    (
        "train/batch.py",
        "loss_rows.append(path[k - 1])",
        "loss_rows.append(path[k - 1] if row.shared < k else 0)",
        "tests/train/test_batch.py",
    ),
    (
        "train/batch.py",
        "mask = trajectory.loss_mask()",
        "mask = [0] + [1] * (len(trajectory.ids) - 1)",
        "tests/train/test_batch.py",
    ),
    (
        "train/algorithm/loss.py",
        "(old_logprobs_T - rollout_logprobs_T).detach().exp()",
        "(rollout_logprobs_T - old_logprobs_T).detach().exp()",
        "tests/train/algorithm/test_off_policy.py",
    ),
    (
        "train/algorithm/loss.py",
        ".exp().clamp(max=cap)",
        ".exp()",
        "tests/train/algorithm/test_off_policy.py",
    ),
    (
        "train/algorithm/off_policy.py",
        "log_ratio_T.exp().clamp(max=cap)",
        "log_ratio_T.exp()",
        "tests/train/algorithm/test_off_policy.py",
    ),
    (
        "train/algorithm/off_policy.py",
        "(ratio_T < floor) | (ratio_T > cap)",
        "ratio_T > cap",
        "tests/train/algorithm/test_off_policy.py",
    ),
    (
        "train/algorithm/off_policy.py",
        "(ELSEWHERE, ~after_tool_T.cpu())",
        "(ELSEWHERE, torch.ones_like(after_tool_T.cpu()))",
        "tests/train/algorithm/test_off_policy.py",
    ),
    (
        "train/algorithm/off_policy.py",
        "return 0 if near else bad_before + 1",
        "return bad_before + (not near)",
        "tests/train/algorithm/test_off_policy.py",
    ),
    (
        "train/batch.py",
        "turn_ended = turn_ended or bool(example.mask[k - 1])",
        "turn_ended = True",
        "tests/train/test_batch.py",
    ),
    (
        "train/learner.py",
        "tis_T, tis_of, start_T = None, None, old_logprobs_T",
        "tis_T, tis_of, start_T = None, None, None",
        "tests/train/test_learner.py",
    ),
    (
        "train/learner.py",
        "good = math.isfinite(norm) and math.isfinite(loss)",
        "good = True",
        "tests/train/test_learner.py",
    ),
    (
        "kernels/grpo.py",
        "tis_of(logprobs_B, rows_C[rows_B])",
        "tis_of(logprobs_B, rows_B)",
        "tests/kernels/test_fused_linear.py::test_factors_made_of_the_log_probs_of_this_forward",
    ),
    (
        "train/packed_layers.py",
        "if layer.gradient_checkpointing and not layer.is_last and",
        "if False and",
        "tests/train/test_policy_model.py",
    ),
    (
        "train/checkpoint.py",
        'weight.to("cpu", copy=True)',
        "weight",
        "tests/train/test_checkpoint.py::test_what_is_written_is_the_state_at_the_begin",
    ),
    (
        "train/checkpoint.py",
        "copied: Any = DefaultStager(plain).stage(state)",
        "copied: Any = state",
        "tests/train/test_checkpoint.py::test_what_is_written_is_the_state_at_the_begin",
    ),
    (
        "engine/rollout.py",
        "agent.chat.prompt_ids(task.question, task.context)",
        "agent.chat.prompt_ids(task.question)",
        "tests/engine/test_rollout.py::test_the_prompt_shows_the_messages_before_the_question",
    ),
    (
        "engine/shown.py",
        "self._check_form(messages, self._tools, generation_prompt=True)",
        "pass",
        "tests/engine/test_shown.py::test_what_a_template_leaves_out_or_changes_is_refused",
    ),
    (
        "train/data.py",
        'id=content_id(json.dumps(context, sort_keys=True) if context else "", question, answer)',
        "id=content_id(config.source, question, answer)",
        "tests/train/test_data.py::test_an_id_says_nothing_of_where_the_data_lies",
    ),
    (
        "train/recipe_paths.py",
        "start = Path() if any(",
        "start = Path() if True or any(",
        "tests/train/test_recipe_paths.py::test_paths_in_the_file_start_at_its_folder",
    ),
    (
        "engine/chat.py",
        "before, after = b.end[len(self.stop_text) :] + b.before_tools, b.after_tools",
        "before, after = b.before_tools, b.after_tools",
        "tests/engine/test_chat.py::test_rstar2_results_share_one_user_turn",
    ),
    (
        "engine/chat.py",
        "self.boundaries.between_tools.join([self._plain(text) for text in texts])",
        "self.boundaries.between_tools.join(texts)",
        "tests/engine/test_chat.py::test_content_never_becomes_a_special_token[rstar2-False]",
    ),
    (
        "engine/chat.py",
        "mask += [0] * len(context) + [1] * len(turn)",
        "mask += [0] * len(context) + [1] * (len(turn) - 1) + [0]",
        "tests/engine/test_chat.py::test_tool_calls_of_messages_are_what_the_policy_would_write[rstar2]",
    ),
    (
        "engine/types.py",
        "if segment.origin is Origin.policy:",
        "if segment.origin is not Origin.prompt:",
        "tests/engine/test_rollout.py",
    ),
    (
        "engine/tools.py",
        "is_error=result.status is not Status.OK",
        "is_error=result.status is Status.ERROR",
        "tests/engine/test_tool_text.py",
    ),
    (
        "engine/tools.py",
        "ToolResult(status=status, is_error=True, text=text)",
        "ToolResult(status=status, is_error=False, text=text)",
        "tests/engine/test_tools.py",
    ),
    (
        "engine/tools.py",
        "            await interpreter.close()",
        "            pass",
        "tests/engine/test_rollout.py",
    ),
    (
        "engine/tools.py",
        "if ran.restarted else",
        "if ran.restarted or ran.replayed else",
        "tests/engine/test_tools.py",
    ),
    ("engine/interpreter.py", "self._cells.clear()", "pass", "tests/engine/test_interpreter.py"),
    (
        "engine/interpreter.py",
        "if status is not cell.status:",
        "if status is None:",
        "tests/engine/test_interpreter.py",
    ),
    (
        "engine/interpreter.py",
        "enumerate(self._cells, 1)",
        "enumerate(self._cells[:-1], 1)",
        "tests/engine/test_interpreter.py",
    ),
    (
        "engine/rollout.py",
        "if len(draft.ids) + len(suffix) >= end:",
        "if len(draft.ids) + len(suffix) > end:",
        "tests/engine/test_rollout.py",
    ),
    (
        "engine/inference/slots.py",
        "            row.cached = 0\n\n    def take_extras",
        "            pass\n\n    def take_extras",
        "tests/engine/test_embedded.py::test_publish_invalidates_every_key_and_value",
    ),
    ("train/verify.py", "if count > 1:", "if count > 2:", "tests/train/test_verify.py"),
    (
        "train/reward.py",
        'last_line not in (f"{nonce} 0", f"{nonce} 1")',
        'last_line[-2:] not in (" 0", " 1")',
        "tests/train/test_reward.py",
    ),
    (
        "sandbox/watchdog.py",
        "if self._silent_s > SILENT_S or",
        "if self._silent_s > SILENT_S + longest_s or",
        "tests/sandbox/test_watchdog.py",
    ),
    (
        "sandbox/fabric/worker.py",
        "if call_id is not None and not entry.waiting:",
        "if call_id is None:",
        "tests/sandbox/fabric/test_chaos.py::test_an_entry_is_gone_with_its_last_answer",
    ),
    (
        "sandbox/fabric/worker_commands.py",
        "streams, count=1, block=BLOCK_MS",
        "streams, count=1, block=BLOCK_MS, noack=True",
        "tests/sandbox/fabric/test_chaos.py::test_an_entry_is_acknowledged_only_with_its_answers",
    ),
    (
        "sandbox/fabric/ledger.py",
        "self._forget(call, by=by)\n        call.settle(outcome)",
        "call.settle(outcome)",
        "tests/sandbox/fabric/test_ledger.py",
    ),
]

SITECUSTOMIZE = """
import importlib.machinery
import importlib.util
import pathlib
import sys

FILES, HERE = {files!r}, pathlib.Path(__file__).parent


class MutatedLoader(importlib.machinery.SourceFileLoader):
    def get_code(self, fullname):  # never the cached bytecode of the real text
        (HERE / (fullname + ".imported")).touch()
        text = (HERE / (fullname + ".txt")).read_text(encoding="utf-8")
        return compile(text, FILES[fullname], "exec")


class MutatedFinder:
    @staticmethod
    def find_spec(fullname, path=None, target=None):
        if file := FILES.get(fullname):
            loader = MutatedLoader(fullname, file)
            return importlib.util.spec_from_file_location(fullname, file, loader=loader)


sys.meta_path.insert(0, MutatedFinder)
"""


def run_with_sources(
    texts: Mapping[str, str], selections: Sequence[str], tmp_path: Path
) -> subprocess.CompletedProcess[str]:
    """Run the selected tests in a child process in which each text stands in for the source of its file.

    The calling test is skipped if none failed and the child had to leave tests out.
    """
    files = {"rocstar." + file.removesuffix(".py").replace("/", "."): file for file in texts}
    for name, file in files.items():
        (tmp_path / f"{name}.txt").write_text(texts[file], encoding="utf-8")
    site = SITECUSTOMIZE.format(files={name: str(ROOT / file) for name, file in files.items()})
    (tmp_path / "sitecustomize.py").write_text(site, encoding="utf-8")
    env = {key: value for key, value in os.environ.items() if not key.startswith(("PYTEST_", "COV"))}
    env["PYTHONPATH"] = os.pathsep.join([str(tmp_path), *filter(None, [env.get("PYTHONPATH")])])
    # -P: the repository root must not come first on the path, where `train` or `kernels` would shadow others.
    command = [sys.executable, "-P", "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider", *selections]
    # A temporary folder of its own: each new numbered one may remove older ones, the parent run's among them.
    command += [f"--basetemp={tmp_path / 'child'}", f"--junitxml={tmp_path / 'child.xml'}"]
    result = subprocess.run(
        command, cwd=ROOT, env=env, capture_output=True, text=True, timeout=DEADLINE_S, check=False
    )
    if result.returncode == pytest.ExitCode.OK and (lacking := lacks(tmp_path / "child.xml")):
        pytest.skip(lacking)
    never = [name for name in files if not (tmp_path / f"{name}.imported").exists()]
    assert not never, f"{', '.join(selections)} never imported {', '.join(never)}:\n{result.stdout}"
    return result


def lacks(junit_xml: Path) -> str | None:
    """Why tests of a child were left out, if for something that this machine lacks."""
    reasons = (skipped.get("message", "") for skipped in ElementTree.parse(junit_xml).iter("skipped"))
    return next((reason for reason in reasons if reason.startswith("needs ")), None)


@pytest.mark.parametrize(("file", "old", "new", "selection"), BUGS)
def test_planted_bug_is_caught(file: str, old: str, new: str, selection: str, tmp_path: Path) -> None:
    text = (ROOT / file).read_text(encoding="utf-8")
    assert text.count(old) == 1, f"{file} has {text.count(old)} times {old!r}, not once: update this row"
    result = run_with_sources({file: text.replace(old, new)}, [selection], tmp_path)
    assert result.returncode == pytest.ExitCode.TESTS_FAILED, (
        f"{selection} did not fail on {new!r} but ended with {result.returncode}:\n"
        f"{result.stdout[-3000:]}{result.stderr[-1000:]}"
    )


@pytest.mark.parametrize("folder", sorted({file.partition("/")[0] for file, *_ in BUGS}))
def test_selections_pass_without_a_bug(folder: str, tmp_path: Path) -> None:
    """Those of a folder in one child: most of its time goes by before the first test."""
    rows = [(file, selection) for file, _, _, selection in BUGS if file.startswith(f"{folder}/")]
    texts = {file: (ROOT / file).read_text(encoding="utf-8") for file, _ in rows}
    result = run_with_sources(texts, sorted({selection for _, selection in rows}), tmp_path)
    assert result.returncode == pytest.ExitCode.OK, result.stdout[-3000:] + result.stderr[-1000:]


def selection_skipped_for(reason: str, tmp_path: Path) -> str:
    """A file with one test, which is always left out."""
    selection = tmp_path / "test_left_out.py"
    selection.write_text(f"import pytest\n\ndef test_it() -> None:\n    pytest.skip({reason!r})\n")
    return str(selection)


def test_a_row_whose_test_lacks_something_is_left_out_too(tmp_path: Path) -> None:
    reason = "needs thunder: wait for it"
    with pytest.raises(pytest.skip.Exception, match=reason):
        run_with_sources({"train/batch.py": ""}, [selection_skipped_for(reason, tmp_path)], tmp_path)


def test_a_row_whose_test_is_left_out_for_another_reason_is_not(tmp_path: Path) -> None:
    """A test that nobody can ever have run would prove nothing for ever."""
    with pytest.raises(AssertionError, match="never imported"):
        run_with_sources({"train/batch.py": ""}, [selection_skipped_for("it is Sunday", tmp_path)], tmp_path)
