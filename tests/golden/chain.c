void k_955a51f1360a(const float* restrict p0, float* restrict p1) {
  {
    float k0[256] __attribute__((aligned(64)));
    float k1[256] __attribute__((aligned(64)));
    for (int64_t begin = 0; begin < 1000; begin += 256) {
      const int64_t end = begin + 256 < 1000 ? begin + 256 : 1000;
      #pragma omp simd
      for (int64_t r0 = begin; r0 < end; ++r0) {
        const float v0 = p0[r0];
        const float v1 = mv_tanhf(v0);
        const float v2 = mv_sinf(v1);
        k0[r0 - begin] = v1;
        k1[r0 - begin] = v2;
      }
      #pragma omp simd
      for (int64_t r0 = begin; r0 < end; ++r0) {
        const float v4 = k1[r0 - begin] * k1[r0 - begin];
        const float v5 = fg_expf(v4);
        const float v6 = k1[r0 - begin] * 2.0f;
        const float v7 = v5 * v6;
        const float v8 = mv_cosf(k0[r0 - begin]);
        const float v9 = v7 * v8;
        const float v10 = k0[r0 - begin] * k0[r0 - begin];
        const float v11 = 1.0f - v10;
        const float v12 = v9 * v11;
        p1[r0] = v12;
      }
    }
  }
}
