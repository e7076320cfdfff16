"""Templates: what sandboxes start from, built from a Dockerfile or from E2B's steps. Each step runs in a sandbox and leaves a snapshot,
which is found again when the same is to be done to the same files.
"""

from agentenv.node.templates import Startup, TemplateRecord
from agentenv.templates.build import Options
from agentenv.templates.journal import BuildLine
from agentenv.templates.template import Built, Wanted, build_plan, build_template, delete_template, rebuild_template

__all__ = [
    "BuildLine",
    "Built",
    "Options",
    "Startup",
    "TemplateRecord",
    "Wanted",
    "build_plan",
    "build_template",
    "delete_template",
    "rebuild_template",
]
