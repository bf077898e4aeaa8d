# ruff: noqa: E501
"""What a walk of four users found wrong, unclear or unchecked: what is answered now, and the test of that answer.

A row: what was tried | part of what is said now, as it stands in the package | the test of it.
"""

import ast
from functools import cache
from pathlib import Path

import pytest

HERE = Path(__file__).parent
PACKAGE = HERE.parent / "src" / "excite"

ROWS = """
two seeds on different images gain the same by chance | Z95**2 * of_images | evaluation/test_comparison.py::test_seeds_that_agree_by_chance_leave_the_noise_of_their_images
intervals over 2, 3, 5 seeds, same or different images, with and without an effect | 95.7% to 99.6% | evaluation/test_comparison.py::test_the_interval_covers_in_every_kind_of_study
one seed diverged: means and difference in one sentence | means of the seeds at which both are there | report/test_findings.py::test_the_means_and_the_difference_in_one_sentence_are_of_the_same_seeds
train with another model's optimizer | model.parameters(), lr=… | training/test_loop.py::test_an_optimizer_of_another_model_is_refused
schedules.attach with groups of 0.01 and 0.1 and a start of 0.4 | which of them does a | test_schedules.py::test_a_schedule_that_may_mean_either_group_is_refused_and_nothing_is_changed
find_edge(ratio=0.8), start=0 | is no learning rate | lipschitz/test_edge.py::test_what_cannot_work_is_refused_with_a_cure
find_edge with negative losses | self.way_down / abs(self.initial) | lipschitz/test_edge.py::test_losses_below_zero_are_losses_too
a search whose loss stayed flat | in an experiment lipschitz.limit | lipschitz/test_edge.py::test_runs_too_short_to_learn_are_said
2/L identified, then trainings diverge at it | is in doubt: | report/test_verdict.py::test_many_that_are_lost_at_2_over_l_are_held_against_it
a diverged arm in the exit code | 3 training diverged | test_cli.py::test_a_diverged_training_has_its_own_exit_code
a second attack with another ε | digest.hexdigest() | runs/test_attacking.py::test_each_attack_keeps_its_verdicts_in_a_file_of_its_own
Ctrl-C in an attack, then the same command | the same command goes on from there | runs/test_attacking.py::test_a_stopped_attack_goes_on_without_being_asked_to
certify and estimate without an arm or an estimate | makes one | cli/test_estimates.py::test_what_is_missing_is_named_with_the_command_that_makes_it
Figure 3: robust above clean | attacked_clean_accuracy | report/figures/test_figures.py::test_figure_3_has_a_line_per_arm
the page of a baseline-only run | how robust is a network? | report/page/test_page.py::test_a_page_of_baselines_claims_nothing_that_was_not_done
a summary after --set | The catalogue's | report/page/test_page.py::test_what_was_changed_is_told_instead_of_the_catalogues_summary
"helped" after one training | may have helped | report/test_verdict.py::test_after_one_training_the_headline_says_maybe
what a second seed costs | A second seed costs about | report/test_verdict.py::test_after_one_training_the_headline_says_maybe
PoE spelt out, "all numbers", the methods and which one was used | PoE: persistency of excitation | report/page/test_page.py::test_the_methods_are_explained_and_one_in_doubt_is_not_trusted
an estimate that is off is not "identified: yes" | to be trusted | report/test_verdict.py::test_an_estimate_that_trainings_speak_against_is_not_trusted
examples show images where the arms differ | those first that withstand it in some arms only | runs/stages/test_attack.py::test_images_that_tell_the_arms_apart_come_first
date, machine, versions, threads, total time on the page | When and on what it ran | report/page/test_origin.py::test_a_run_says_its_machine_versions_threads_date_and_total_time
the contents list | aria-label="Contents" | report/page/test_page.py::test_everything_is_on_it_in_order
a sweep over rates | Accuracy against the rate | report/page/test_charts.py::test_a_sweep_over_rates_draws_accuracy_against_rate
wide tables at 390 px | scroll it sideways | report/page/test_page_in_browser.py::test_it_fits_a_phone
terminal tables of 80 columns | terminal_width | report/tables/test_formats.py::test_the_terminals_table_fits_its_width_and_loses_nothing
CSV and JSON: one documented schema, whatever the content | Described in docs/tables.md | report/tables/test_formats.py::test_the_fields_are_the_same_whatever_the_content_and_documented
--json and --format json agree | What `--json` and `--format json` print | report/tables/test_formats.py::test_csv_and_json_say_the_same
logs name seed, arm and stage | stage {self._plan.index(file) + 1} of | test_console.py::test_places_stand_before_the_task
honest progress | , about {left:.0f} s left | test_console.py::test_lines_in_a_log_say_how_far_it_is_and_what_is_left
LaTeX has a label, compiles and fits a page | max width=\\textwidth | report/tables/test_formats.py::test_latex_compiles_and_fits_its_page
PDF figures | Write `name`.svg, .png and .pdf | report/figures/test_figures.py::test_files_are_whole_and_the_same_when_drawn_again
legends are not cut | LONGEST_NAME | report/figures/test_style.py::test_no_legend_and_no_title_is_cut
bad command lines, some 290 of them | Name a new folder with --out | test_bad_input.py::test_a_bad_command_line_is_refused_with_the_cure
options that would be ignored | would be ignored | test_ignored_options.py::test_an_option_that_would_be_ignored_is_refused
bad arguments of functions | with one class there is nothing to | test_bad_arguments.py::test_a_bad_argument_is_refused_with_the_cure
arrays, loaders, int32, lists, float64 given to evaluate | as a DataLoader does | evaluation/test_judge_inputs.py::test_examples_in_every_form
a bare attack, a list, a name, TOML, eps="8/255" | step_length | evaluation/test_judge_inputs.py::test_attacks_in_every_form
FGSM by name | PGD's one step, as long as the ball's radius | evaluation/test_judge_inputs.py::test_fgsm_is_one_whole_step_of_pgd
a plain function, journal="text" | pass a function (model, x, y, generator) | evaluation/test_judge_inputs.py::test_a_plain_function_two_of_a_kind_and_a_journal_as_text
foolbox attacks | A foolbox attack as one of ours | attacks/test_from_foolbox.py::test_each_kind_knows_its_ball_and_stays_in_it
float64 and autocast | floating-point type | evaluation/test_judge_inputs.py::test_double_precision_and_autocast
weights with module. prefixes | prefix | runs/test_attacking.py::test_the_prefix_of_a_wrapper_is_taken_off
suggestions only when near | did you mean | test_errors.py::test_suggestions_only_when_near
tabular models | checks that need images | evaluation/test_judge_inputs.py::test_rows_of_numbers_are_judged_without_the_checks_that_need_images
text models | attack the embeddings | evaluation/test_judge_inputs.py::test_the_rest_is_refused_with_a_cure
"""
CASES = [tuple(part.strip() for part in line.split(" | ")) for line in ROWS.strip().splitlines()]


@cache
def package() -> str:
    kinds = {".py", ".j2", ".css", ".js"}
    return "\n".join(path.read_text(encoding="utf-8") for path in sorted(PACKAGE.rglob("*")) if path.suffix in kinds)


@cache
def names_in(file: str) -> set[str]:
    tree = ast.parse((HERE / file).read_text(encoding="utf-8"))
    return {node.name for node in tree.body if isinstance(node, ast.FunctionDef)}


@pytest.mark.parametrize(("tried", "answer", "test"), CASES, ids=[tried for tried, _, _ in CASES])
def test_every_case_has_its_answer_and_the_test_of_it(tried: str, answer: str, test: str) -> None:
    file, _, name = test.partition("::")
    assert name in names_in(file), f"{tried}: {test} is gone; name the test that holds its answer now"
    assert answer in package(), f"{tried}: nothing says “{answer}” any more"
