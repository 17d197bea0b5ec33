"""What people type. Every command but `serve` talks to a running daemon through `client.py`."""
