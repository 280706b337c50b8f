"""A registry whose import takes long."""

import time

time.sleep(60)
crews: dict[str, object] = {}
