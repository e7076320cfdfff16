"""The child that `agentenv.node.mapped` starts: what it does as the users of a sandbox."""

from __future__ import annotations

from agentenv.images.files import remove_tree
from agentenv.node.capture import copy_as_we_are, prepare_as_we_are
from agentenv.node.mapped import serve

if __name__ == "__main__":
    serve(
        {
            "copy": lambda staging, *uppers: copy_as_we_are(uppers, staging, lambda: False),
            "prepare": lambda staging, layers, *earlier: prepare_as_we_are(staging, layers, earlier),
            "remove": remove_tree,
        }
    )
