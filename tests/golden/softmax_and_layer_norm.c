void k_a0f1880f284f(const float* restrict p0, const float* restrict p1, float* restrict p2, float* restrict p3) {
  {
    float k0[64] __attribute__((aligned(64)));
    float k1[64] __attribute__((aligned(64)));
    float k2[64] __attribute__((aligned(64)));
    float k3[64] __attribute__((aligned(64)));
    float k4[64] __attribute__((aligned(64)));
    float k5[64] __attribute__((aligned(64)));
    for (int64_t row = 0; row < 8; ++row) {
      const int64_t r0 = row;
      float a0 = -INFINITY;
      #pragma omp simd reduction(fgmax:a0)
      for (int64_t c0 = 0; c0 < 64; ++c0) {
        const float v6 = p0[c0 + r0 * 64];
        a0 = FG_MAX(v6, a0);
      }
      float a1 = 0;
      #pragma omp simd reduction(+:a1)
      for (int64_t c0 = 0; c0 < 64; ++c0) {
        const float v6 = p0[c0 + r0 * 64];
        const float v7 = v6 - a0;
        const float v8 = fg_expf(v7);
        a1 = a1 + v8;
        k0[c0] = v8;
      }
      float a2 = 0;
      #pragma omp simd reduction(+:a2)
      for (int64_t c0 = 0; c0 < 64; ++c0) {
        const float v7 = k0[c0] / a1;
        a2 = a2 + v7;
        k1[c0] = v7;
      }
      const float v4 = a2 / 64.0f;
      float a3 = 0;
      #pragma omp simd reduction(+:a3)
      for (int64_t c0 = 0; c0 < 64; ++c0) {
        const float v10 = k1[c0] - v4;
        const float v11 = v10 * v10;
        a3 = a3 + v11;
        k2[c0] = v10;
      }
      const float v8 = 1.0f / 512.0f;
      const float v9 = a3 / 64.0f;
      const float v11 = v9 + 1e-05f;
      const float v12 = 1 / sqrtf(v11);
      float a4 = 0;
      float a5 = 0;
      #pragma omp simd reduction(+:a4) reduction(+:a5)
      for (int64_t c0 = 0; c0 < 64; ++c0) {
        const float v18 = k2[c0] * v12;
        const float v19 = p1[c0];
        const float v20 = v18 * v19;
        const float v21 = v20 * 2.0f;
        const float v22 = v8 * v21;
        const float v23 = v22 * v19;
        const float v24 = v23 * v18;
        const float v25 = v22 * v18;
        a4 = a4 + v23;
        a5 = a5 + v24;
        k3[c0] = v18;
        k4[c0] = v23;
        p3[c0 + r0 * 64] = v25;
      }
      const float v16 = a4 / 64.0f;
      const float v17 = a5 / 64.0f;
      float a6 = 0;
      #pragma omp simd reduction(+:a6)
      for (int64_t c0 = 0; c0 < 64; ++c0) {
        const float v23 = k4[c0] - v16;
        const float v24 = k3[c0] * v17;
        const float v25 = v23 - v24;
        const float v26 = v12 * v25;
        const float v27 = v26 * k1[c0];
        a6 = a6 + v27;
        k5[c0] = v27;
      }
      #pragma omp simd
      for (int64_t c0 = 0; c0 < 64; ++c0) {
        const float v25 = k1[c0] * a6;
        const float v26 = k5[c0] - v25;
        p2[c0 + r0 * 64] = v26;
      }
    }
  }
}

void k_a992972211d5(const float* restrict p0, float* restrict p1) {
  {
    for (int64_t begin = 0; begin < 64; begin += 256) {
      const int64_t end = begin + 256 < 64 ? begin + 256 : 64;
      #pragma omp simd
      for (int64_t r0 = begin; r0 < end; ++r0) {
        const float v0 = p0[r0];
        const float v1 = p0[r0 + 64];
        const float v2 = v0 + v1;
        const float v3 = p0[r0 + 128];
        const float v4 = v2 + v3;
        const float v5 = p0[r0 + 192];
        const float v6 = v4 + v5;
        const float v7 = p0[r0 + 256];
        const float v8 = v6 + v7;
        const float v9 = p0[r0 + 320];
        const float v10 = v8 + v9;
        const float v11 = p0[r0 + 384];
        const float v12 = v10 + v11;
        const float v13 = p0[r0 + 448];
        const float v14 = v12 + v13;
        p1[r0] = v14;
      }
    }
  }
}
