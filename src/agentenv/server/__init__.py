"""The node service: turns a machine into a server that many trainers use at once, through HTTP, with keys, tenants and quotas.

`serve` runs it; `app` puts the parts together; `services` is what a part is given. `fleet` owns the sandboxes, `access` the keys,
`catalogue` the templates, `database` what outlives the process, `control` the routes that act on sandboxes from outside.
"""
