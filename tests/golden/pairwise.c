void k_e1bebcec73f2(const float* restrict p0, float* restrict p1, float* restrict p2) {
  {
    double d_p1[120] __attribute__((aligned(64)));
    for (int64_t i = 0; i < 120; ++i) d_p1[i] = 0;
    float t_p1[120] __attribute__((aligned(64)));
    for (int64_t i = 0; i < 120; ++i) t_p1[i] = 0;
    float g0[40] __attribute__((aligned(64)));
    float g1[40] __attribute__((aligned(64)));
    float g2[40] __attribute__((aligned(64)));
    #pragma omp simd
    for (int64_t c0 = 0; c0 < 40; ++c0) {
      const float v0 = p0[c0 * 3];
      const float v1 = p0[c0 * 3 + 1];
      const float v2 = p0[c0 * 3 + 2];
      g0[c0] = v0;
      g1[c0] = v1;
      g2[c0] = v2;
    }
    for (int64_t row = 0; row < 40; ++row) {
      const int64_t r0 = row;
      const float v1 = -1.0f;
      const float v2 = p0[r0 * 3];
      const float v3 = p0[r0 * 3 + 1];
      const float v4 = p0[r0 * 3 + 2];
      const int64_t v5 = r0;
      float a0 = 0;
      float a1 = 0;
      float a2 = 0;
      #pragma omp simd simdlen(8) reduction(+:a0) reduction(+:a1) reduction(+:a2)
      for (int64_t c0 = 0; c0 < 40; ++c0) {
        const float v9 = v2 - g0[c0];
        const float v10 = v9 * v9;
        const float v11 = v3 - g1[c0];
        const float v12 = v11 * v11;
        const float v13 = v10 + v12;
        const float v14 = v4 - g2[c0];
        const float v15 = v14 * v14;
        const float v16 = v13 + v15;
        const int64_t v17 = c0;
        const int v18 = v5 == v17;
        const float v19 = (float)v18;
        const float v20 = v16 + v19;
        const float v21 = 1 / v20;
        const float v22 = v21 * v21;
        const float v23 = v1 * v22;
        const float v24 = v23 * v9;
        const float v25 = v24 + v24;
        const float v26 = v23 * v11;
        const float v27 = v26 + v26;
        const float v28 = v23 * v14;
        const float v29 = v28 + v28;
        const float v30 = -v25;
        const float v31 = -v27;
        const float v32 = -v29;
        a0 = a0 + v25;
        a1 = a1 + v27;
        a2 = a2 + v29;
        t_p1[c0] = t_p1[c0] + v30;
        t_p1[c0 + 40] = t_p1[c0 + 40] + v31;
        t_p1[c0 + 80] = t_p1[c0 + 80] + v32;
      }
      p2[r0 * 3] = a0;
      p2[r0 * 3 + 1] = a1;
      p2[r0 * 3 + 2] = a2;
      if (row % 32 == 31) {
        for (int64_t i = 0; i < 120; ++i) { d_p1[i] += t_p1[i]; t_p1[i] = 0; }
      }
    }
    for (int64_t i = 0; i < 120; ++i) { d_p1[i] += t_p1[i]; t_p1[i] = 0; }
    for (int64_t i = 0; i < 120; ++i) p1[i % 40 * 3 + i / 40] = d_p1[i];
  }
}

void k_c451e74b6bb6(const float* restrict p0, const float* restrict p1, float* restrict p2) {
  {
    for (int64_t begin = 0; begin < 120; begin += 256) {
      const int64_t end = begin + 256 < 120 ? begin + 256 : 120;
      #pragma omp simd
      for (int64_t r0 = begin; r0 < end; ++r0) {
        const float v0 = p0[r0];
        const float v1 = p1[r0];
        const float v2 = v0 + v1;
        p2[r0] = v2;
      }
    }
  }
}
