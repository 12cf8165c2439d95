"""Stand-ins for web UIs: what their source and their running programs were seen to do, in small."""
