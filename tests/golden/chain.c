void k_cbae46ddc6b0(const float* restrict p0, float* restrict p1, int64_t n) {
  {
    float k0[256] __attribute__((aligned(64)));
    float k1[256] __attribute__((aligned(64)));
    float k2[256] __attribute__((aligned(64)));
    for (int64_t begin = 0; begin < n; begin += 256) {
      const int64_t end = begin + 256 < n ? begin + 256 : n;
      {
        int far = 0;
        #pragma omp simd reduction(|:far)
        for (int64_t r0 = begin; r0 < end; ++r0) {
          const float v1 = p0[r0];
          const float v2 = mv_tanhf(v1);
          const float v3 = v2 * v2;
          const float v4 = 1.0f - v3;
          const float v5 = fg_cosf(v2);
          const float v6 = fg_sinf(v2);
          far |= fabsf(v2) > FG_NEAR;
          k0[r0 - begin] = v4;
          k1[r0 - begin] = v5;
          k2[r0 - begin] = v6;
        }
        if (far) {
          #pragma omp simd
          for (int64_t r0 = begin; r0 < end; ++r0) {
            const float v1 = p0[r0];
            const float v2 = mv_tanhf(v1);
            const float v3 = v2 * v2;
            const float v4 = 1.0f - v3;
            const float v5 = mv_cosf(v2);
            const float v6 = mv_sinf(v2);
            k0[r0 - begin] = v4;
            k1[r0 - begin] = v5;
            k2[r0 - begin] = v6;
          }
        }
      }
      #pragma omp simd
      for (int64_t r0 = begin; r0 < end; ++r0) {
        const float v5 = k2[r0 - begin] * k2[r0 - begin];
        const float v6 = fg_expf(v5);
        const float v7 = k2[r0 - begin] * 2.0f;
        const float v8 = v6 * v7;
        const float v9 = v8 * k1[r0 - begin];
        const float v10 = v9 * k0[r0 - begin];
        p1[r0] = v10;
      }
    }
  }
}
