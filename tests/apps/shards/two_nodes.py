"""A Ray cluster of two nodes on this machine, of which the second can be killed.

For tests and benchmarks. It prints the cluster's address; then every line on standard input kills
the second node, and the end of standard input ends the cluster.
"""

from __future__ import annotations

import os
import sys

os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
os.environ["RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"] = "0"  # the loopback address

from ray.cluster_utils import Cluster

# A lost node is noticed after a second; by default it takes Ray a quarter of a minute.
QUICK = {
    "health_check_initial_delay_ms": 500,
    "health_check_period_ms": 500,
    "health_check_failure_threshold": 2,
}


def main() -> None:
    node = {"num_cpus": int(sys.argv[1]), "object_store_memory": 100 * 2**20}
    head = {**node, "include_dashboard": False, "_system_config": QUICK}
    cluster = Cluster(initialize_head=True, head_node_args=head)
    second = cluster.add_node(**node)
    cluster.wait_for_nodes()
    print("address", cluster.address, flush=True)
    for _ in sys.stdin:
        cluster.remove_node(second, allow_graceful=False)
        print("killed", flush=True)
    cluster.shutdown()


if __name__ == "__main__":
    main()
