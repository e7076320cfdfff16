"""The pages. Importing this loads NiceGUI and tells it of them."""

from agentenv.server.dashboard.pages import access, overview, runs, sandbox, templates

__all__ = ["access", "overview", "runs", "sandbox", "templates"]
