"""`python -m agentenv.envs.guest` serves an environment."""

import sys

from agentenv.envs.guest.server import main

sys.exit(main())
