"""Many simulated seeds: drawn, carried out, counted."""
