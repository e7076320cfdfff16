"""The JSON schema of a configuration, for editors and other programs."""

from __future__ import annotations

from typing import Any

from agentenv.config.models import Config


def json_schema() -> dict[str, Any]:
    """A JSON schema (draft 2020-12) of the whole file, with every key's meaning, unit, default and limits."""
    schema = Config.model_json_schema(mode="validation")
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", "title": "AgentENV configuration"} | {
        name: value for name, value in schema.items() if name != "title"
    }
