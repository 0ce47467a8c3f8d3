void k_4a08522c5d14(float* restrict p0) {
  {
    float k0[64] __attribute__((aligned(64)));
    float k1[64] __attribute__((aligned(64)));
    float k2[64] __attribute__((aligned(64)));
    for (int64_t row = 0; row < 8; ++row) {
      const int64_t r0 = row;
      float a0 = -INFINITY;
      #pragma omp simd reduction(fgmax:a0)
      for (int64_t c0 = 0; c0 < 64; ++c0) {
        const float v3 = p0[c0 + r0 * 64];
        a0 = FG_MAX(v3, a0);
      }
      float a1 = 0;
      #pragma omp simd reduction(+:a1)
      for (int64_t c0 = 0; c0 < 64; ++c0) {
        const float v3 = p0[c0 + r0 * 64];
        const float v4 = v3 - a0;
        const float v5 = fg_expf(v4);
        a1 = a1 + v5;
        k0[c0] = v5;
      }
      float a2 = 0;
      #pragma omp simd reduction(+:a2)
      for (int64_t c0 = 0; c0 < 64; ++c0) {
        const float v4 = k0[c0] / a1;
        const float v5 = v4 * 2.0f;
        const float v6 = v5 * v4;
        a2 = a2 + v6;
        k1[c0] = v4;
        k2[c0] = v6;
      }
      #pragma omp simd
      for (int64_t c0 = 0; c0 < 64; ++c0) {
        const float v7 = k1[c0] * a2;
        const float v8 = k2[c0] - v7;
        p0[c0 + r0 * 64] = v8;
      }
    }
  }
}
