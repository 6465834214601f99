"""What every door that answers over a network is served with: listeners, a process, HTTP, access, OpenAPI pieces.

It knows no door and decides nothing about turns.  Import from the module that has the thing: each needs an extra.
"""
