"""Tasks and SSH node pools of SkyPilot."""
