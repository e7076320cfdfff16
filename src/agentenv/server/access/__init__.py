"""Who may come in and what they may do: tenants, their keys and roles, their quotas, and the audit log of what they did."""

from agentenv.server.access.access import Access, FirstKey, Key
from agentenv.server.access.principal import Principal, Quotas, Role, Tenant

__all__ = ["Access", "FirstKey", "Key", "Principal", "Quotas", "Role", "Tenant"]
