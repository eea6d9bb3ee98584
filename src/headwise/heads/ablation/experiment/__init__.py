"""The experiment of ``headwise ablate`` as a Python interface with the same report.

options          the options of the experiment; the fields are the command-line options
selection        the heads to remove
texts            the texts for the loss, and the reference texts
experiment       the plan, the measurement and its result
ablation_report  the result as a document, as JSON and as CSV
"""

from headwise.heads.ablation.experiment.ablation_report import as_csv, as_json, report
from headwise.heads.ablation.experiment.experiment import (
    AblationPlan,
    AblationResult,
    plan_ablation,
    run_experiment,
    run_plan,
)
from headwise.heads.ablation.experiment.options import AblationOptions
from headwise.heads.ablation.experiment.selection import Selection, select_heads

__all__ = [
    "AblationOptions",
    "AblationPlan",
    "AblationResult",
    "Selection",
    "as_csv",
    "as_json",
    "plan_ablation",
    "report",
    "run_experiment",
    "run_plan",
    "select_heads",
]
