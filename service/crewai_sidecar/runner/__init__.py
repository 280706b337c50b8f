"""Runs Actions in processes of their own: queue, slots, the fork server, its children, and who is left of them."""
