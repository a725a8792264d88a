"""Diffs and a source file of the case that was written by hand."""

INDEXER_DIFF = """\
diff --git a/engine/index_page.py b/engine/index_page.py
index 1111111..2222222 100644
--- a/engine/index_page.py
+++ b/engine/index_page.py
@@ -41,9 +41,9 @@ class PageReader:
     def offsets(self, slot: int) -> tuple[int, int]:
-        # one record per key: values, then its scale
-        value = slot * (self.dim + 4)
-        scale = value + self.dim
+        # all values of the page first, then all scales
+        value = slot * self.dim
+        scale = self.page_size * self.dim + slot * 4
         return value, scale

     def read(self, page: torch.Tensor) -> torch.Tensor:
@@ -72,4 +72,4 @@ class PageReader:
     def scales(self, page: torch.Tensor) -> torch.Tensor:
-        return page[:, self.dim :: self.dim + 4]
+        return page[:, self.page_size * self.dim :]
"""

GUARD_DIFF = """\
diff --git a/engine/methods/fp8.py b/engine/methods/fp8.py
index 3333333..4444444 100644
--- a/engine/methods/fp8.py
+++ b/engine/methods/fp8.py
@@ -58,6 +58,8 @@ class Fp8MoEMethod:
         out = self.runner.run(x, weights, ids)
-        if not layer.should_fuse:
-            out = out * layer.routed_scaling_factor
+        factor = layer.routed_scaling_factor
+        fused = layer.should_fuse_routed_scaling_factor_in_topk
+        if factor is not None and not fused:
+            out = out * factor
         return out
"""

SOURCE = '''\
"""Expert methods: how the routed experts of a layer are stored and run."""

import torch


class Fp8MoEMethod:
    """Experts in FP8 with one scale per 128 x 128 block."""

    should_fuse_routed_scaling_factor_in_topk = False

    def apply(self, layer, x, topk):
        runner = layer.runner
        out = runner.run(x, topk.weights, topk.ids)
        if not layer.should_fuse:
            out = out * layer.routed_scaling_factor
        return out


class NvFp4MoEMethod:
    """Experts in NVFP4: e2m1 codes, an e4m3 scale per 16 values, one fp32 scale."""

    should_fuse_routed_scaling_factor_in_topk = True

    def apply(self, layer, x, topk):
        runner = layer.runner
        return runner.run(x, topk.weights, topk.ids)
'''
