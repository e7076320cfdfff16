"""The JSON schema says what the reader accepts."""

from typing import Any

from agentenv.config import json_schema


def test_every_key_is_described() -> None:
    schema = json_schema()
    assert schema["$schema"].startswith("https://json-schema.org/")
    sections: dict[str, Any] = {"Config": schema, **schema["$defs"]}
    for name, section in sections.items():
        assert section["description"], name
        for key, field in section["properties"].items():
            # A section is described where it is defined.
            assert "description" in field or "$ref" in str(field), f"{name}.{key}"
    assert all(section["additionalProperties"] is False for section in sections.values())


def test_units_are_in_the_schema() -> None:
    resources = json_schema()["$defs"]["ResourcesConfig"]["properties"]
    memory = str(resources["memory"])
    assert "MiB" in memory or "i?)?B" in memory
    assert "1 GB is 10^9 bytes" in resources["memory"]["description"]
