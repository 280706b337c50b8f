"""What the service says of itself: metrics, declared once, and logs. Never a token, a key, an input or an output."""
