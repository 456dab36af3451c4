"""What a network is: its descriptor, the layout of its weights and states, and its files. Nothing here computes."""
