"""Reads Dockerfiles and .dockerignore files, and says with the line what is wrong in them. Nothing is run here."""

from agentenv.templates.dockerfile.ignore import Ignored
from agentenv.templates.dockerfile.parse import parse, read
from agentenv.templates.dockerfile.words import BadWord, expand, expand_words

__all__ = ["BadWord", "Ignored", "expand", "expand_words", "parse", "read"]
