"""The sections, in the order in which they run. It imports nothing, as the process that starts the others needs it."""

SECTIONS = {
    "correctness": 60,
    "kinds": 60,
    "waits": 20,
    "streams": 30,
    "compiled": 120,
    "offloading": 90,
    "memory": 30,
    "quantized": 30,
    "speed": 160,
}
"""Section -> seconds after which none of its checks begins; all together ten minutes."""
LOST = 70
"""Exit status of a process where the device does not compute any more."""
ALL = "all checks"
"""Name of a check for what became of a section as a whole."""
