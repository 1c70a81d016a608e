"""What started this process and what it will compute on: launchers, devices, and the plan that joins them."""
