"""Images: what a sandbox sees as its files before it writes any. `ImageStore` turns a reference (`host`, `debian`, `dir:PATH`, `tar:PATH`)
into plain directories to mount, keeps unpacked archives by their content, and knows who uses them. Nothing of an image is run here, but for
the packages' scripts when `debian` is built.
"""

from agentenv.images.kept import Image, Progress
from agentenv.images.store import ImageStore, default_image

__all__ = ["Image", "ImageStore", "Progress", "default_image"]
