"""Cost per ticket, as ratios inside one interleaved run; `make bench` prints them."""
