void k_86bae9cb42df(const float* restrict p0, float* restrict p1) {
  {
    float k0[256] __attribute__((aligned(64)));
    float k1[256] __attribute__((aligned(64)));
    float k2[256] __attribute__((aligned(64)));
    float k3[256] __attribute__((aligned(64)));
    for (int64_t begin = 0; begin < 1000; begin += 256) {
      const int64_t end = begin + 256 < 1000 ? begin + 256 : 1000;
      #pragma omp simd
      for (int64_t r0 = begin; r0 < end; ++r0) {
        const float v2 = p0[r0];
        const float v3 = mv_tanhf(v2);
        const float v4 = v3 * v3;
        const float v5 = 1.0f - v4;
        const float v6 = mv_sinf(v3);
        const float v7 = v6 * 2.0f;
        const float v8 = v6 * v6;
        k0[r0 - begin] = v5;
        k1[r0 - begin] = v3;
        k2[r0 - begin] = v7;
        k3[r0 - begin] = v8;
      }
      #pragma omp simd
      for (int64_t r0 = begin; r0 < end; ++r0) {
        const float v6 = fg_expf(k3[r0 - begin]);
        const float v7 = v6 * k2[r0 - begin];
        const float v8 = mv_cosf(k1[r0 - begin]);
        const float v9 = v7 * v8;
        const float v10 = v9 * k0[r0 - begin];
        p1[r0] = v10;
      }
    }
  }
}
