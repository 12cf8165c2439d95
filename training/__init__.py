"""Makes the demo's model and its LoRAs from nothing: `python install.py train`."""
