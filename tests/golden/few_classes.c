void k_17e8a5b4c681(const int64_t* restrict p0, uint8_t* restrict p1, float* restrict p2, int64_t n) {
  {
    int t_p1[1] __attribute__((aligned(64)));
    for (int64_t i = 0; i < 1; ++i) t_p1[i] = 0;
    double t_p2[1] __attribute__((aligned(64)));
    for (int64_t i = 0; i < 1; ++i) t_p2[i] = 0;
    for (int64_t begin = 0; begin < n; begin += 256) {
      const int64_t end = begin + 256 < n ? begin + 256 : n;
      int a0 = 0;
      float a1 = 0;
      #pragma omp simd reduction(|:a0) reduction(+:a1)
      for (int64_t r0 = begin; r0 < end; ++r0) {
        const int64_t v3 = p0[r0];
        const int v4 = v3 < (0LL);
        const int v5 = v3 >= (3LL);
        const int v6 = v4 | v5;
        const int v7 = v3 != (-100LL);
        const int v8 = v6 & v7;
        const float v9 = (float)v7;
        a0 = a0 | v8;
        a1 = a1 + v9;
      }
      t_p1[0] = t_p1[0] | a0;
      t_p2[0] = t_p2[0] + a1;
    }
    for (int64_t i = 0; i < 1; ++i) p1[i] = t_p1[i];
    for (int64_t i = 0; i < 1; ++i) p2[i] = t_p2[i];
  }
}

void k_b7805937f90c(const float* restrict p0, float* restrict p1, float* restrict p2, float* restrict p3) {
  {
    double d_p1[3] __attribute__((aligned(64)));
    for (int64_t i = 0; i < 3; ++i) d_p1[i] = 0;
    float t_p1[3] __attribute__((aligned(64)));
    for (int64_t i = 0; i < 3; ++i) t_p1[i] = 0;
    for (int64_t row = 0; row < 300; ++row) {
      const int64_t r0 = row;
      const float v0 = p0[r0 * 3];
      const float v1 = p0[r0 * 3 + 1];
      const float v2 = (v1 >= v0 || v1 != v1) ? v1 : v0;
      const float v3 = p0[r0 * 3 + 2];
      const float v4 = (v3 >= v2 || v3 != v3) ? v3 : v2;
      #pragma omp simd
      for (int64_t c0 = 0; c0 < 3; ++c0) {
        const float v5 = p0[c0 + r0 * 3];
        const float v6 = v5 - v4;
        const float v7 = fg_expf(v6);
        p2[c0 + r0 * 3] = v6;
        p3[c0 + r0 * 3] = v7;
        t_p1[c0] = t_p1[c0] + v5;
      }
      if (row % 32 == 31) {
        for (int64_t i = 0; i < 3; ++i) { d_p1[i] += t_p1[i]; t_p1[i] = 0; }
      }
    }
    for (int64_t i = 0; i < 3; ++i) { d_p1[i] += t_p1[i]; t_p1[i] = 0; }
    for (int64_t i = 0; i < 3; ++i) p1[i] = d_p1[i];
  }
}

void k_0d02d37559b0(float* restrict p0) {
  {
    for (int64_t begin = 0; begin < 3; begin += 256) {
      const int64_t end = begin + 256 < 3 ? begin + 256 : 3;
      #pragma omp simd
      for (int64_t r0 = begin; r0 < end; ++r0) {
        const float v1 = p0[r0];
        const float v2 = v1 * 2.0f;
        p0[r0] = v2;
      }
    }
  }
}

void k_bee621cc4edf(const float* restrict p0, const int64_t* restrict p1, const float* restrict p2, const float* restrict p3, const float* restrict p4, float* restrict p5, int64_t n) {
  {
    float k0[256] __attribute__((aligned(64)));
    float k1[256] __attribute__((aligned(64)));
    float k2[256] __attribute__((aligned(64)));
    float k3[256] __attribute__((aligned(64)));
    for (int64_t begin = 0; begin < n; begin += 256) {
      const int64_t end = begin + 256 < n ? begin + 256 : n;
      const float v3 = -1.0f;
      const float v4 = p2[0];
      const float v5 = v3 / v4;
      const float v9 = p0[0];
      #pragma omp simd
      for (int64_t r0 = begin; r0 < end; ++r0) {
        const int64_t v10 = p1[r0];
        const int v11 = (0LL) == v10;
        const int v12 = v10 != (-100LL);
        const float v13 = v12 ? v5 : 0.0f;
        const float v14 = v11 ? v13 : 0.0f;
        const int v15 = (1LL) == v10;
        const float v16 = v15 ? v13 : 0.0f;
        const float v17 = v14 + v16;
        const int v18 = (2LL) == v10;
        const float v19 = v18 ? v13 : 0.0f;
        const float v20 = v17 + v19;
        const float v21 = p4[r0 * 3];
        const float v22 = p4[r0 * 3 + 1];
        const float v23 = v21 + v22;
        const float v24 = p4[r0 * 3 + 2];
        const float v25 = v23 + v24;
        const float v26 = mv_logf(v25);
        const float v27 = p3[r0 * 3];
        const float v28 = v27 - v26;
        const float v29 = fg_expf(v28);
        const float v30 = v29 * v20;
        const float v31 = v14 - v30;
        const float v32 = v9 + v31;
        k0[r0 - begin] = v20;
        k1[r0 - begin] = v26;
        k2[r0 - begin] = v19;
        k3[r0 - begin] = v16;
        p5[r0 * 3] = v32;
      }
      const float v10 = p0[1];
      const float v11 = p0[2];
      #pragma omp simd
      for (int64_t r0 = begin; r0 < end; ++r0) {
        const float v16 = p3[r0 * 3 + 1];
        const float v17 = v16 - k1[r0 - begin];
        const float v18 = fg_expf(v17);
        const float v19 = v18 * k0[r0 - begin];
        const float v20 = k3[r0 - begin] - v19;
        const float v21 = v10 + v20;
        const float v22 = p3[r0 * 3 + 2];
        const float v23 = v22 - k1[r0 - begin];
        const float v24 = fg_expf(v23);
        const float v25 = v24 * k0[r0 - begin];
        const float v26 = k2[r0 - begin] - v25;
        const float v27 = v11 + v26;
        p5[r0 * 3 + 1] = v21;
        p5[r0 * 3 + 2] = v27;
      }
    }
  }
}
