"""Programs and kernels that backends need and that AgentENV does not bring along: found on the machine, or fetched, pinned and checked.

`ArtefactStore.find` looks, `obtain` fetches, `agentenv setup` does it for all backends at once.
"""

from agentenv.isolation.artefacts.kernel_image import Kernel
from agentenv.isolation.artefacts.recipe import Artefact, Progress
from agentenv.isolation.artefacts.store import NEEDS, ArtefactStore

__all__ = ["NEEDS", "Artefact", "ArtefactStore", "Kernel", "Progress"]
