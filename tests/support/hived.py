"""A small HiveD configuration: one rack of two machines, shared by two virtual clusters."""

from typing import Any


def hived_document() -> dict[str, Any]:
    """Return two machines ``dgx-1`` and ``dgx-2`` with eight devices; one for vision-a, half for
    VC-1."""
    return {
        "physicalCluster": {
            "cellTypes": {
                "SOCKET": {"childCellType": "A100", "childCellNumber": 4},
                "DGX": {"childCellType": "SOCKET", "childCellNumber": 2, "isNodeLevel": True},
                "DGX-RACK": {"childCellType": "DGX", "childCellNumber": 2},
            },
            "physicalCells": [
                {
                    "cellType": "DGX-RACK",
                    "cellAddress": "r1",
                    "cellChildren": [{"cellAddress": "dgx-1"}, {"cellAddress": "dgx-2"}],
                }
            ],
        },
        "virtualClusters": {
            "vision-a": {"virtualCells": [{"cellType": "DGX-RACK.DGX", "cellNumber": 1}]},
            "VC-1": {"virtualCells": [{"cellType": "DGX-RACK.DGX.SOCKET", "cellNumber": 1}]},
        },
    }
