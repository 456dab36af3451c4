"""Generated faults that change nothing that anybody could see, each with the reason; by their names."""

EQUIVALENT = {}
