"""The embedded web UI's API for many users: requests share batches, and Ray Serve runs them on many GPUs and machines.

`mixed` makes the pictures of several requests in one batch, and `queue` decides which; neither needs Ray. `service` is
the Ray Serve application, whose routes are in `ingress`. `python -m extension.serve` starts it.
"""
