"""The experiment of ``headwise ablate`` for Python, with the same report.

options          what is measured; the fields are the options of the command
selection        the heads to remove
texts            the texts that the loss is measured on, and the reference texts
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
