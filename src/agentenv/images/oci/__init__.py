"""Images as registries have them (https://github.com/opencontainers): pulled by reference or read from files, kept as layers that images
share. Nothing of them is run here.
"""

from agentenv.images.oci.credentials import Credentials
from agentenv.images.oci.images import OciImages
from agentenv.images.oci.reference import Reference

__all__ = ["Credentials", "OciImages", "Reference"]
